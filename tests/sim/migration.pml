/* A move of one shard in its four phases, as src/core/migration makes it, with all orders in which
 * messages, crashes and Controllers can meet; for spin (tests/sim/model.py).
 *
 * S and T hold copies: the source's and the goal's. A Controller reads the journal when it starts.
 * One that is replaced may have died or go on. Answers may not come, or come late; every wait may
 * run out of time, and three times without an answer is its deadline. The readers' grace is that
 * those who were told of a copy have read it.
 *
 * Bounds: FAILOVERS, LOSSES and DOUBLES of messages, DAMAGES of bytes, UNSURE commits, one host that is lost
 * (LOSE: 1 the source's, 2 the goal's), READS. NO_... leaves a rule out, which must be found. */
#ifndef FAILOVERS
#define FAILOVERS 2
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef DOUBLES
#define DOUBLES 1
#endif
#ifndef UNSURE
#define UNSURE 1
#endif
#ifndef LOSE
#define LOSE 0
#endif
#ifndef READS
#define READS 1
#endif
#define TRIES  2
#define EPOCHS (FAILOVERS + 1)
#define S      0
#define T      1
#define GONE   0 /* a copy: not there, right, damaged */
#define GOOD   1
#define BAD    2

mtype = {COPY, CHECK, DROP, COPIED, CHECKED, DROPPED};
mtype = {NEW, COPYING, CLEANING, UNDOING, ENDED};

mtype journal = NEW;
byte epoch = 1;
bool dead[EPOCHS + 1];
byte copy[2];
bool lost[2]; /* with its host */
byte seen_epoch[2], seen_order[2];
byte told_epoch[2];
byte transfer = 0; /* the order of the copy that is being made */
byte transfer_epoch;
byte offer = S; /* what the Controller of this epoch tells readers */
bool reading[2];
byte losses = LOSSES, doubles = DOUBLES, unsure = UNSURE;

chan order_to_s = [2] of {mtype, byte, byte}; /* kind, epoch, number */
chan order_to_t = [2] of {mtype, byte, byte};
chan answers[EPOCHS + 1] = [2] of {mtype, byte, byte, byte}; /* kind, number, who, copy */

/* One that does not fit is lost. */
inline tell(to, kind, number)
{
    atomic {
        if
        :: nfull(to) -> to!kind, e, number
        :: full(to)
        fi
    }
}

inline answer(kind, e, number, who)
{
    if
    :: nfull(answers[e]) -> answers[e]!kind, number, who, copy[who]
    :: full(answers[e])
    fi
}

inline drop_copy(who)
{
    assert(copy[who] != GOOD || copy[1 - who] == GOOD || lost[1 - who]);
    assert(!(who == S && journal != CLEANING && journal != ENDED));
    assert(!(who == T && journal == CLEANING));
    copy[who] = GONE
}

/* Old epochs, and orders older than one that was obeyed, are not. A newer one ends a transfer. */
proctype Holder(byte who; chan orders)
{
    mtype kind;
    byte e, number;
end:
    do
    :: atomic {
           orders?kind, e, number ->
           if
           :: e > told_epoch[who] -> told_epoch[who] = e
           :: else
           fi;
           if
#ifndef NO_EPOCH
           :: e < seen_epoch[who]
#endif
           :: number < seen_order[who]
           :: else ->
              assert(e >= told_epoch[who]);
              seen_epoch[who] = e;
              seen_order[who] = number;
              if
              :: who == T && transfer != number -> transfer = 0
              :: else
              fi;
              if
              :: kind == COPY && copy[T] == GONE -> transfer = number; transfer_epoch = e
              :: kind == COPY && copy[T] != GONE -> answer(COPIED, e, number, T)
              :: kind == CHECK -> answer(CHECKED, e, number, who)
              :: kind == DROP -> drop_copy(who); answer(DROPPED, e, number, who)
              fi
           fi;
           kind = COPY; e = 0; number = 0
       }
    :: atomic {
           who == T && transfer != 0 ->
           if
           :: copy[S] == GOOD -> copy[T] = GOOD
           :: copy[S] == GOOD -> copy[T] = BAD
           :: copy[S] == GONE
           fi;
           answer(COPIED, transfer_epoch, transfer, T);
           transfer = 0
       }
    od
}

/* Messages are lost and doubled, and a host is lost, at any time. */
proctype Weather()
{
    mtype kind;
    byte e, number;
end:
    do
    :: atomic { losses > 0 && nempty(order_to_s) -> losses--; order_to_s?kind, e, number }
    :: atomic { losses > 0 && nempty(order_to_t) -> losses--; order_to_t?kind, e, number }
    :: atomic {
           doubles > 0 && nempty(order_to_s) && nfull(order_to_s) -> doubles--;
           order_to_s?<kind, e, number>; order_to_s!kind, e, number
       }
    :: atomic {
           doubles > 0 && nempty(order_to_t) && nfull(order_to_t) -> doubles--;
           order_to_t?<kind, e, number>; order_to_t!kind, e, number
       }
    :: atomic { len(order_to_s) == 2 && losses > 0 -> losses--; /* overtaken */
           order_to_s?kind, e, number; order_to_s!kind, e, number }
    :: atomic { len(order_to_t) == 2 && losses > 0 -> losses--;
           order_to_t?kind, e, number; order_to_t!kind, e, number }
#if LOSE
    :: atomic { !lost[LOSE - 1] -> lost[LOSE - 1] = true; copy[LOSE - 1] = GONE }
#endif
    od
}

/* false: another Controller has the store. */
inline commit(phase)
{
    atomic {
        if
        :: e == epoch -> journal = phase
        :: e != epoch -> goto dies
        fi
    }
}

inline offers(place)
{
    atomic {
        if
        :: e == epoch -> offer = place
        :: else
        fi
    }
}

/* Asks both; answered: both have said what they have. */
inline check()
{
    number++;
    tell(order_to_s, CHECK, number);
    tell(order_to_t, CHECK, number);
    has[S] = GONE; has[T] = GONE; heard[S] = false; heard[T] = false;
    do
    :: atomic {
           answers[e]?CHECKED, n, who, c ->
           if
           :: n == number -> has[who] = c; heard[who] = true
           :: else
           fi;
           n = 0; who = 0; c = 0
       }
    :: atomic { answers[e]?COPIED, n, who, c -> n = 0; who = 0; c = 0 }
    :: atomic { answers[e]?DROPPED, n, who, c -> n = 0; who = 0; c = 0 }
    :: heard[S] && heard[T] -> break
    :: break
    od
}

inline drop_at(place, to)
{
    number++;
    tell(to, DROP, number);
    dropped = false;
    do
    :: atomic {
           answers[e]?DROPPED, n, who, c ->
           if
           :: n == number -> dropped = true
           :: else
           fi;
           n = 0; who = 0; c = 0
       }
    :: atomic { answers[e]?CHECKED, n, who, c -> n = 0; who = 0; c = 0 }
    :: dropped -> break
    :: break
    od
}

#ifdef NO_GRACE
#define GRACE(place) true
#else
#define GRACE(place) !reading[place]
#endif
#ifdef NO_CONFIRM
#define CONFIRMED(place) true
#else
#define CONFIRMED(place) (heard[S] && heard[T] && has[place] == GOOD)
#endif
#ifdef NO_CRC
#define RIGHT(c) (c != GONE)
#else
#define RIGHT(c) (c == GOOD)
#endif

proctype Controller(byte e)
{
    byte number = e * 16, n, who, c, tries;
    byte has[2];
    bool heard[2], dropped;
    {
#ifdef NO_JOURNAL
        goto decides;
#endif
        if
        :: journal == NEW -> goto decides
        :: journal == COPYING -> goto resumes
        :: journal == CLEANING -> offers(T); goto cleans
        :: journal == UNDOING -> offers(S); goto undoes
        :: journal == ENDED -> goto over
        fi;
decides:
        commit(COPYING);
        number++;
        tell(order_to_t, COPY, number);
        c = GONE;
        if
        :: atomic { answers[e]?COPIED, n, who, c -> n = 0; who = 0 }
        :: true /* cancelled, or too late */
        fi;
        if
        :: RIGHT(c) -> c = 0; goto switches
        :: else -> c = 0; goto reverts
        fi;
resumes:
        do
        :: tries == TRIES -> goto reverts
        :: tries < TRIES ->
           tries++;
           check();
           if
           :: heard[S] && heard[T] && has[T] == GOOD -> goto switches
           :: heard[S] && heard[T] && has[T] != GOOD -> goto reverts
           :: else
           fi
        od;
switches:
        atomic {
            if
            :: e != epoch -> goto dies
            :: e == epoch -> journal = CLEANING
            :: e == epoch && unsure > 0 -> unsure--; journal = CLEANING; goto unsure_of_it
            :: e == epoch && unsure > 0 -> unsure--; goto unsure_of_it
            fi
        };
        offers(T);
cleans:
        GRACE(S);
        tries = 0;
        do
        :: tries == TRIES -> goto ends
        :: tries < TRIES ->
           tries++;
           check();
           if
           :: CONFIRMED(T) ->
              if
              :: has[S] == GONE && heard[S] -> goto ends
              :: else ->
                 drop_at(S, order_to_s);
                 if
                 :: dropped -> goto ends
                 :: else
                 fi
              fi
           :: heard[S] && heard[T] && has[T] != GOOD && has[S] == GOOD -> goto reverts
           :: else
           fi
        od;
unsure_of_it:
#ifdef NO_SURE
        goto undoes;
#endif
reverts:
        commit(UNDOING);
        offers(S);
undoes:
        GRACE(T);
        tries = 0;
        do
        :: tries == TRIES -> goto ends
        :: tries < TRIES ->
           tries++;
           check();
           if
           :: CONFIRMED(S) ->
              if
              :: has[T] == GONE && heard[T] -> goto ends
              :: else ->
                 drop_at(T, order_to_t);
                 if
                 :: dropped -> goto ends
                 :: else
                 fi
              fi
           :: else
           fi
        od;
ends:
        commit(ENDED);
over:
dies:
        skip
    } unless { dead[e] }
}

/* Another Controller takes over; the one before is dead, or does not know yet. */
proctype Failover()
{
    byte n = FAILOVERS;
end:
    do
    :: atomic {
           n > 0 && journal != ENDED -> n--;
           if
           :: dead[epoch] = true
           :: true
           fi;
           epoch++;
           run Controller(epoch)
       }
    od
}

/* Told where the copy is, one reads it there; only the loss of a host excuses that it is not. */
proctype Reader()
{
    byte place, n = READS;
    do
    :: n == 0 -> break
    :: atomic { n > 0 -> n--; place = offer; reading[place] = true };
       atomic { assert(copy[place] == GOOD || lost[place]); reading[place] = false }
    od
}

init
{
    atomic {
        copy[S] = GOOD;
        run Holder(S, order_to_s);
        run Holder(T, order_to_t);
        run Weather();
        run Reader();
        run Failover();
        run Controller(1)
    }
}

#define bytes_stay (copy[S] == GOOD || copy[T] == GOOD || lost[S] || lost[T])
#define started (copy[S] == GOOD || copy[T] == GOOD || journal != NEW)

ltl holds { [] (started -> bytes_stay) }
ltl ends { <> [] (journal == ENDED) }
