/* A move of one shard in its four phases, as src/core/migration makes it, with all orders in which
 * messages, crashes and Controllers can meet; for spin (tests/sim/model.py).
 *
 * S and T hold copies: the source's and the goal's. A Controller reads the journal when it starts.
 * One that is replaced may have died or go on. Answers may not come, or come late; every wait may
 * run out of time, and after TRIES of them is the deadline. The readers' grace is that
 * those who were told of a copy have read it.
 *
 * The environment gives a run its bounds, so that one program does for all: FAILOVERS (less than
 * EPOCHS), LOSSES and DOUBLES of messages, UNSURE commits, CANCELS, READS, TRIES, and LOSE, the
 * host that is lost (1 the source's, 2 the goal's). NO_... leaves a rule out, which must be found.
 * That a drop needs a confirmed copy is left to the simulator: here a lost host excuses it at any
 * time. A copy is also cancelled where CANCELS is 0: that looks as if it had failed.
 *
 * What is not read any more gets one value at once: states that differ by it alone would be
 * searched for nothing. */
#define EPOCHS 2
#define S      0
#define T      1
#define GONE   0 /* a copy: not there, right, damaged */
#define GOOD   1
#define BAD    2
#define SILENT 3 /* an answer that has not come */

c_decl {
\#include <stdlib.h>

    static int given(const char *name)
    {
        const char *text = getenv(name);
        return text != NULL ? atoi(text) : 0;
    }
}

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
byte stopped; /* the newest STOP that the goal's holder has obeyed */
byte offer = S; /* what the Controller of this epoch tells readers */
bool reading[2];
byte losses, doubles, unsure, cancels;
/* The same in all states of a run. */
hidden byte failovers, reads, lose, tries_max;
hidden byte no_crc, no_order, no_stop, no_grace, no_sure, no_end;

chan order_to_s = [2] of {mtype, byte, byte}; /* kind, epoch, number */
chan order_to_t = [2] of {mtype, byte, byte};
/* The order of each Controller whose answer it waits for, and what each holder has answered. */
byte asked[EPOCHS + 1], told[(EPOCHS + 1) * 2] = SILENT;

#define ORDER(e)        (e * 16) /* before the first of an epoch */
#define EPOCH_OF(order) (order / 16)

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
    if
    :: asked[e] == number -> told[e * 2 + who] = copy[who]
    :: else /* nobody waits for it any more */
    fi
}

inline wait_no_more(e)
{
    asked[e] = 0;
    told[e * 2 + S] = SILENT;
    told[e * 2 + T] = SILENT
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
           :: !no_order && e < seen_epoch[who]
           :: !no_order && e >= seen_epoch[who] && number < seen_order[who]
           :: else ->
              assert(e >= told_epoch[who]);
              seen_epoch[who] = e;
              seen_order[who] = number;
              if
              :: kind == STOP && !no_stop -> transfer = 0
              :: kind == COPY && transfer != number -> transfer = 0
              :: else
              fi;
              if
              :: kind == COPY && copy[T] == GONE -> transfer = number
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
           answer(EPOCH_OF(transfer), transfer, T);
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
    :: atomic { losses > 0 && nempty(order_to_s) -> losses--; order_to_s?_, _, _ }
    :: atomic { losses > 0 && nempty(order_to_t) -> losses--; order_to_t?_, _, _ }
    :: atomic {
           doubles > 0 && nempty(order_to_s) && nfull(order_to_s) -> doubles--;
           order_to_s?<kind, e, number>; order_to_s!kind, e, number;
           kind = 0; e = 0; number = 0
       }
    :: atomic {
           doubles > 0 && nempty(order_to_t) && nfull(order_to_t) -> doubles--;
           order_to_t?<kind, e, number>; order_to_t!kind, e, number;
           kind = 0; e = 0; number = 0
       }
    :: atomic { lose > 0 && !lost[lose - 1] -> lost[lose - 1] = true; copy[lose - 1] = GONE }
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
        asked[e] = number;
        tell(order_to_s, CHECK, number);
        tell(order_to_t, CHECK, number)
    };
    if
    :: atomic {
           told[e * 2 + S] != SILENT && told[e * 2 + T] != SILENT ->
           heard = true;
           has_s = told[e * 2 + S];
           has_t = told[e * 2 + T];
           wait_no_more(e)
       }
    :: atomic { true -> wait_no_more(e) } /* too late */
    fi
}

/* What was heard is done with; nobody may know it any more, or states differ by it. */
inline forget()
{
    heard = false;
    has_s = GONE;
    has_t = GONE
}

inline be_done()
{
    forget();
    number = 0;
    tries = 0
}

inline drop_at(place, to)
{
    atomic { forget(); number++; asked[e] = number; tell(to, DROP, number) };
    if
    :: atomic { told[e * 2 + place] != SILENT -> wait_no_more(e); be_done(); goto ends }
    :: atomic { true -> wait_no_more(e) }
    fi
}

#define GRACE(place) (no_grace || !reading[place])
#define RIGHT(c)     (c == GOOD || (no_crc && c == BAD))

proctype Controller(byte e)
{
    byte number = ORDER(e), tries, has_s, has_t;
    bool heard;
    {
        if
        :: atomic { journal == NEW -> goto decides }
        :: atomic { journal == COPYING -> goto resumes }
        :: atomic { journal == CLEANING -> offers(T); goto cleans }
        :: atomic { journal == UNDOING -> offers(S); goto undoes }
        :: atomic { journal == ENDED -> number = 0; goto over }
        fi;
decides:
        commit(COPYING);
        if
        :: atomic { cancels > 0 -> cancels--; be_done(); goto ends }
        :: atomic { true -> number++; asked[e] = number; tell(order_to_t, COPY, number) }
        fi;
        if
        :: atomic {
               RIGHT(told[e * 2 + T]) -> wait_no_more(e);
               goto switches
           }
        :: atomic { true -> wait_no_more(e); goto stops } /* cancelled, or too late */
        :: atomic {
               told[e * 2 + T] != SILENT && told[e * 2 + T] != GOOD -> wait_no_more(e);
               goto reverts
           }
        fi;
resumes:
        check();
        if
        :: atomic { has_t == GOOD -> forget(); goto switches }
        :: atomic { has_t != GOOD -> forget(); goto stops }
        fi;
stops: /* the copy's answer is not needed: it may come after all */
        atomic { number++; tell(order_to_t, STOP, number); goto reverts };
switches:
        atomic {
            if
            :: e != epoch -> goto dies
            :: e == epoch -> journal = CLEANING
            :: e == epoch && unsure > 0 -> unsure--; journal = CLEANING; goto is_unsure
            :: e == epoch && unsure > 0 ->
               unsure--;
is_unsure:
               if
               :: no_sure -> goto undoes
               :: else -> goto reverts
               fi
            fi
        };
        offers(T);
cleans:
        atomic { GRACE(S) -> tries = 0 };
        do
        :: atomic { tries == tries_max -> be_done(); goto ends }
        :: atomic { tries < tries_max -> tries = tries + !no_end };
           check();
           if
           :: atomic { heard && has_s != GOOD && has_t == GOOD -> be_done(); goto ends }
           :: heard && has_s == GOOD && has_t == GOOD -> drop_at(S, order_to_s)
           :: atomic {
                  heard && has_t != GOOD && has_s == GOOD -> forget(); tries = 0;
                  goto reverts
              }
           :: atomic {
                  heard && has_s == GOOD && cancels > 0 -> cancels--; forget(); tries = 0;
                  goto reverts
              }
           :: atomic { !heard || (has_s != GOOD && has_t != GOOD) -> forget() }
           fi
        od;
reverts:
        commit(UNDOING);
        offers(S);
undoes:
        atomic { GRACE(T) -> tries = 0 };
        do
        :: atomic { tries == tries_max -> be_done(); goto ends }
        :: atomic { tries < tries_max -> tries = tries + !no_end };
           check();
           if
           :: atomic { /* one is lost */
                  heard && (has_s != GOOD || has_t != GOOD) -> be_done();
                  goto ends
              }
           :: heard && has_s == GOOD && has_t == GOOD -> drop_at(T, order_to_t)
           :: !heard
           fi
        od;
ends:
        commit(ENDED);
over:
dies:
        atomic { be_done() }
    } unless { atomic { dead[e] -> dead[e] = false; be_done() } }
}

/* Another Controller takes over; the one before is dead, or does not know yet. */
proctype Failover()
{
    byte n = failovers;
end:
    do
    :: atomic {
           n > 0 && journal != ENDED -> n--;
           if
           :: dead[epoch] = true; wait_no_more(epoch)
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
    byte place, n = reads;
    do
    :: n == 0 -> break
    :: atomic { n > 0 -> n--; place = offer; reading[place] = true };
       atomic { assert(copy[place] == GOOD || lost[place]); reading[place] = false; place = S }
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
        c_code {
            now.losses = given("LOSSES");
            now.doubles = given("DOUBLES");
            now.unsure = given("UNSURE");
            now.cancels = given("CANCELS");
            failovers = given("FAILOVERS");
            reads = given("READS");
            lose = given("LOSE");
            tries_max = given("TRIES");
            no_crc = given("NO_CRC");
            no_order = given("NO_ORDER");
            no_stop = given("NO_STOP");
            no_grace = given("NO_GRACE");
            no_sure = given("NO_SURE");
            no_end = given("NO_END");
        };
        assert(failovers < EPOCHS);
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
