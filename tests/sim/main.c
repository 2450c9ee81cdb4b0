/* sim_migration: runs of simulated clusters, one after the other; the first that breaks a rule is
 * made shorter and told. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/world.h"

static const char *const mutant_names[] = {
#define X(name, text, what) text,
    SIM_MUTANTS(X)
#undef X
};

struct sim_args {
    uint64_t first, seeds;
    bool one, trace;
    enum mutant mutant;
};

static void sim_usage(void)
{
    printf("Usage: sim_migration [SEEDS] [--first SEED] [--seed SEED] [--mutant NAME]\n\n"
           "  SEEDS         runs of the seeds 1 to SEEDS (2000)\n"
           "  --first SEED  begins with that one\n"
           "  --seed SEED   only that one; prints what happens in it, shortened if it fails\n"
           "  --mutant NAME with a planted fault:\n");
#define X(name, text, what)                                                                        \
    if (what[0] != '\0')                                                                           \
        printf("                  %-10s %s\n", text, what);
    SIM_MUTANTS(X)
#undef X
}

static bool number_parse(const char *text, uint64_t *out)
{
    char *end;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

static bool mutant_parse(const char *text, enum mutant *out)
{
    for (int i = 0; i < MUTANTS; i++)
        if (strcmp(text, mutant_names[i]) == 0) {
            *out = (enum mutant)i;
            return true;
        }
    return false;
}

static bool args_parse(int argc, char **argv, struct sim_args *a)
{
    static const struct option options[] = {{"first", required_argument, NULL, 'f'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"mutant", required_argument, NULL, 'm'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int o;
    *a = (struct sim_args){.first = 1, .seeds = 2000};
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (o == 'h') {
            sim_usage();
            exit(0);
        }
        if (o == 's')
            a->one = true;
        if ((o == 'f' || o == 's') && !number_parse(optarg, &a->first))
            return false;
        if (o == 'm' && !mutant_parse(optarg, &a->mutant))
            return false;
        if (o == '?')
            return false;
    }
    if (optind < argc && !number_parse(argv[optind++], &a->seeds))
        return false;
    if (a->one)
        a->seeds = 1;
    return optind == argc && a->seeds > 0;
}

static void sim_tell(struct script *s, const struct sim_args *a, struct world *w)
{
    printf("seed %llu: %s\n", (unsigned long long)s->seed, w->broken);
    unsigned left = run_shrink(s, a->mutant, w);
    run_script(s, a->mutant, a->one, w);
    printf("shortened to %u events, %u steps: %s\n", left, w->step, w->broken);
    script_print(s);
    if (!a->one)
        printf("./run sim --seed %llu%s%s shows every step of it\n", (unsigned long long)s->seed,
               a->mutant != MUTANT_NONE ? " --mutant " : "",
               a->mutant != MUTANT_NONE ? mutant_names[a->mutant] : "");
}

int main(int argc, char **argv)
{
    static struct world w;
    struct sim_args a;
    struct script s;
    uint64_t steps = 0, ended = 0, switched = 0, reverted = 0, stopped = 0, dropped = 0, reads = 0;
    if (!args_parse(argc, argv, &a)) {
        sim_usage();
        return 2;
    }
    for (uint64_t seed = a.first; seed < a.first + a.seeds; seed++) {
        script_make(&s, seed);
        if (!run_script(&s, a.mutant, false, &w)) {
            sim_tell(&s, &a, &w);
            free(w.messages);
            return 1;
        }
        steps += w.step;
        ended += w.ended;
        switched += w.switched;
        reverted += w.reverted;
        stopped += w.stopped;
        dropped += w.dropped;
        reads += w.reads;
    }
    if (a.one)
        run_script(&s, a.mutant, true, &w);
    free(w.messages);
    printf("%llu seeds, %llu steps, %llu moves ended, %llu switches, %llu turned back, "
           "%llu copies broken off, %llu dropped, %llu reads: all held\n",
           (unsigned long long)a.seeds, (unsigned long long)steps, (unsigned long long)ended,
           (unsigned long long)switched, (unsigned long long)reverted, (unsigned long long)stopped,
           (unsigned long long)dropped, (unsigned long long)reads);
    return 0;
}
