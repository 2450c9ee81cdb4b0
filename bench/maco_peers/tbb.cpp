// oneTBB: a task_group where tasks are independent, a flow graph where they wait for each other,
// built once; layers also as one task_group after the other ("groups"). argv: threads.
#include "peer.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <tbb/flow_graph.h>
#include <tbb/global_control.h>
#include <tbb/task_group.h>
#include <vector>

using node = tbb::flow::continue_node<tbb::flow::continue_msg>;
using message = tbb::flow::continue_msg;

struct built {
    tbb::flow::graph graph;
    std::vector<std::unique_ptr<node>> nodes;
    std::vector<node *> roots;
    std::string name;
    int tasks = 0;

    node *add(int i)
    {
        nodes.push_back(std::make_unique<node>(graph, [i](const message &m) {
            if (i >= 0)
                call(i);
            return m;
        }));
        return nodes.back().get();
    }
};

static void build(built &b, const std::string &name, int tasks)
{
    b.name = name;
    b.tasks = tasks;
    node *before = nullptr;
    int width = name == "chain" ? 1 : WIDTH;
    for (int first = 0; first < tasks; first += width) {
        node *join = width > 1 && first + width < tasks ? b.add(-1) : nullptr;
        node *last = nullptr;
        for (int i = first; i < first + width; i++) {
            last = b.add(i);
            if (before != nullptr)
                tbb::flow::make_edge(*before, *last);
            else
                b.roots.push_back(last);
            if (join != nullptr)
                tbb::flow::make_edge(*last, *join);
        }
        before = width > 1 ? join : last;
    }
}

static void groups(int n, int width)
{
    tbb::task_group g;
    for (int first = 0; first < n; first += width) {
        for (int i = first; i < first + width; i++)
            g.run([i] { call(i); });
        g.wait();
    }
}

static std::unique_ptr<built> kept;

static void run_graph(const char *graph, int tasks)
{
    std::string name = graph;
    if (name == "indep" || name == "groups") {
        groups(tasks, name == "indep" ? tasks : WIDTH);
        return;
    }
    for (node *r : kept->roots)
        r->try_put(message());
    kept->graph.wait_for_all();
}

static int serve_built()
{
    char graph[16];
    int tasks;
    for (int i = 0; i < TASKS_MAX; i++)
        calls[i].function = empty;
    while (scanf("%15s %d", graph, &tasks) == 2 && tasks > 0 && tasks <= TASKS_MAX) {
        bool graphs = strcmp(graph, "chain") == 0 || strcmp(graph, "layer") == 0;
        if (graphs && (!kept || kept->name != graph || kept->tasks != tasks)) {
            kept = std::make_unique<built>();
            build(*kept, graph, tasks);
        }
        uint64_t from = now_ns();
        run_graph(graph, tasks);
        printf("%llu\n", (unsigned long long)(now_ns() - from));
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    tbb::global_control limit(tbb::global_control::max_allowed_parallelism, (size_t)threads);
    return serve_built();
}
