/* A move of one shard in its four phases, as src/core/migration makes it, with all orders in which
 * messages, crashes and Controllers can meet; for spin (tests/sim/model.py).
 *
 * S and T hold copies: the source's and the goal's. A Controller reads the journal when it starts.
 * One that is replaced may have died or go on. Answers may not come, or come late; every wait may
 * run out of time, and after TRIES of them is the deadline. The readers' grace is that
 * those who were told of a copy have read it.
 *
 * Bounds: FAILOVERS, LOSSES and DOUBLES of messages, UNSURE commits, CANCELS, one host that is lost
 * (LOSE: 1 the source's, 2 the goal's), READS. NO_... leaves a rule out, which must be found. That a
 * drop needs a confirmed copy is left to the simulator: here a lost host excuses it at any time.
 * A copy is also cancelled where CANCELS is 0: that looks as if it had failed. */
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
#ifndef CANCELS
#define CANCELS 0
#endif
#ifndef LOSE
#define LOSE 0
#endif
#ifndef READS
#define READS 1
#endif
#ifndef TRIES
#define TRIES 1
#endif
#define EPOCHS (FAILOVERS + 1)
#define S      0
#define T      1
#define GONE   0 /* a copy: not there, right, damaged */
#define GOOD   1
#define BAD    2

mtype = {COPY, CHECK, DROP, STOP};
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
byte stopped; /* the newest STOP that the goal's holder has obeyed */
byte offer = S; /* what the Controller of this epoch tells readers */
bool reading[2];
byte losses = LOSSES, doubles = DOUBLES, unsure = UNSURE, cancels = CANCELS;

chan order_to_s = [2] of {mtype, byte, byte}; /* kind, epoch, number */
chan order_to_t = [2] of {mtype, byte, byte};
/* The newest answer of each holder to each Controller; one that is overwritten was lost. */
byte answered[(EPOCHS + 1) * 2], told[(EPOCHS + 1) * 2];

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

inline answer(e, number, who)
{
    answered[e * 2 + who] = number;
    told[e * 2 + who] = copy[who]
}

inline drop_copy(who)
{
    assert(copy[who] != GOOD || copy[1 - who] == GOOD || lost[1 - who]);
    assert(!(who == S && journal != CLEANING && journal != ENDED));
    assert(!(who == T && journal == CLEANING));
    copy[who] = GONE
}

/* Old epochs, and orders older than one that was obeyed, are not. Another copy ends a transfer, and
 * so does STOP; a question or a drop does not. */
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
#ifndef NO_ORDER
           :: e < seen_epoch[who]
           :: e >= seen_epoch[who] && number < seen_order[who]
#endif
           :: else ->
              assert(e >= told_epoch[who]);
              seen_epoch[who] = e;
              seen_order[who] = number;
              if
#ifndef NO_STOP
              :: kind == STOP -> transfer = 0
#endif
              :: kind == COPY && transfer != number -> transfer = 0
              :: else
              fi;
              if
              :: kind == COPY && copy[T] == GONE -> transfer = number; transfer_epoch = e
              :: kind == COPY && copy[T] != GONE -> answer(e, number, T)
              :: kind == CHECK -> answer(e, number, who)
              :: kind == STOP -> stopped = number
              :: kind == DROP -> drop_copy(who); answer(e, number, who)
              fi
           fi;
           kind = COPY; e = 0; number = 0
       }
    :: atomic {
           who == T && transfer != 0 ->
           assert(transfer > stopped);
           if
           :: copy[S] == GOOD -> copy[T] = GOOD
           :: copy[S] == GOOD -> copy[T] = BAD
           :: copy[S] == GONE
           fi;
           answer(transfer_epoch, transfer, T);
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

/* Asks both; what a silent one has is not known. */
inline check()
{
    atomic {
        number++;
        tell(order_to_s, CHECK, number);
        tell(order_to_t, CHECK, number)
    };
    if
    :: atomic {
           answered[e * 2 + S] == number && answered[e * 2 + T] == number ->
           heard = true;
           has_s = told[e * 2 + S];
           has_t = told[e * 2 + T]
       }
    :: atomic { true -> heard = false; has_s = GONE; has_t = GONE } /* too late */
    fi
}

inline drop_at(place, to)
{
    atomic { number++; tell(to, DROP, number) };
    if
    :: answered[e * 2 + place] == number -> goto ends
    :: true
    fi
}

#ifdef NO_GRACE
#define GRACE(place) true
#else
#define GRACE(place) !reading[place]
#endif
#ifdef NO_CRC
#define RIGHT(c) (c != GONE)
#else
#define RIGHT(c) (c == GOOD)
#endif

#ifdef NO_END
#define TRIED skip
#else
#define TRIED tries++
#endif

proctype Controller(byte e)
{
    byte number = e * 16, tries, has_s, has_t;
    bool heard;
    {
        if
        :: atomic { journal == NEW -> goto decides }
        :: atomic { journal == COPYING -> goto resumes }
        :: atomic { journal == CLEANING -> offers(T); goto cleans }
        :: atomic { journal == UNDOING -> offers(S); goto undoes }
        :: atomic { journal == ENDED -> goto over }
        fi;
decides:
        commit(COPYING);
        if
        :: atomic { cancels > 0 -> cancels--; goto ends }
        :: atomic { true -> number++; tell(order_to_t, COPY, number) }
        fi;
        if
        :: atomic { answered[e * 2 + T] == number && RIGHT(told[e * 2 + T]) -> goto switches }
        :: true -> goto stops /* cancelled, or too late */
        :: atomic { answered[e * 2 + T] == number && told[e * 2 + T] != GOOD -> goto reverts }
        fi;
resumes:
        check();
        if
        :: atomic { has_t == GOOD -> heard = false; has_t = 0; has_s = 0; goto switches }
        :: atomic { has_t != GOOD -> heard = false; has_t = 0; has_s = 0; goto stops }
        fi;
stops: /* the copy's answer is not needed: it may come after all */
        atomic { number++; tell(order_to_t, STOP, number); goto reverts };
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
        atomic { GRACE(S) -> tries = 0 };
        do
        :: atomic { tries == TRIES -> goto ends }
        :: atomic { tries < TRIES -> TRIED };
           check();
           if
           :: atomic { heard && has_s != GOOD && has_t == GOOD -> goto ends }
           :: heard && has_s == GOOD && has_t == GOOD -> drop_at(S, order_to_s)
           :: atomic { heard && has_t != GOOD && has_s == GOOD -> goto reverts }
           :: atomic { heard && has_s == GOOD && cancels > 0 -> cancels--; goto reverts }
           :: !heard || (has_s != GOOD && has_t != GOOD)
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
        atomic { GRACE(T) -> tries = 0; heard = false; has_t = 0; has_s = 0 };
        do
        :: atomic { tries == TRIES -> goto ends }
        :: atomic { tries < TRIES -> TRIED };
           check();
           if
           :: atomic { heard && (has_s != GOOD || has_t != GOOD) -> goto ends } /* one is lost */
           :: heard && has_s == GOOD && has_t == GOOD -> drop_at(T, order_to_t)
           :: !heard
           fi
        od;
ends:
        commit(ENDED);
over:
dies:
        atomic { number = 0; tries = 0; heard = false; has_t = 0; has_s = 0 }
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
           if /* it reads the journal before it speaks to readers */
           :: journal == CLEANING -> offer = T
           :: journal == ENDED
           :: else -> offer = S
           fi;
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

/* When nothing can happen any more the move has ended; that there is no cycle is asked of spin. */
proctype End()
{
    timeout -> assert(journal == ENDED)
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
        run End();
        run Controller(1)
    }
}
