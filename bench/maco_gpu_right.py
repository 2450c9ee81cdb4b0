"""Sections of bench/maco_gpu.py that check results: every body against torch, random graphs against
an oracle, the demo."""
import ctypes as C
import math
import random

from maco_gpu_lib import (
    ADD,
    ATTENTION,
    AXPB,
    CAST,
    ELEMENTWISE,
    GELU,
    LAYERNORM,
    LINEAR,
    MATMUL,
    MEMCPY,
    MEMSET,
    MUL,
    POLICIES,
    RELU,
    RMSNORM,
    SCALE_ADD,
    SILU,
    SOFTMAX,
    STATIC,
    SUB,
    U8,
    Failed,
)


# ---- every body against torch ----


def close(x, name, dtype, got, want):
    torch = x.torch
    error = ((got.double() - want.double()).norm() / want.double().norm()).item()
    limit = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}[dtype]
    ok = math.isfinite(error) and error <= limit
    x.report.line(f"  {name:34} {str(dtype)[6:]:9} {error:9.2e}  {'ok' if ok else 'WRONG'}")
    x.report.number(
        f"{name} {str(dtype)[6:]}", error if math.isfinite(error) else None, "relative error"
    )
    if not ok:
        x.errors.append(f"{name} {dtype}")


def one(x, kind, inputs, output, dims, aux=(), outputs=None):
    output.fill_(float("nan"))  # what is not written is found
    graph = x.graph()
    graph.add(kind, inputs, outputs or [output], dims, aux)
    cuda = x.cuda(graph.compile(), workers=1)
    cuda.run()
    cuda.close()
    return output


def check_products(x, dtype):
    for m, n, k, ta, tb in (
        (256, 384, 512, 0, 0),
        (200, 100, 72, 1, 0),
        (130, 257, 99, 0, 1),
        (128, 128, 64, 1, 1),
    )[2 * x.quick :]:
        a = x.rand(k, m, dtype=dtype) if ta else x.rand(m, k, dtype=dtype)
        b = x.rand(n, k, dtype=dtype) if tb else x.rand(k, n, dtype=dtype)
        y = x.empty(m, n, dtype=dtype)
        one(x, MATMUL, [a, b], y, [m, n, k, a.shape[1], b.shape[1], n, ta, tb], [1.0, 0.0])
        want = (a.double().T if ta else a.double()) @ (b.double().T if tb else b.double())
        close(x, f"matmul {m}x{n}x{k} {'T' if ta else 'N'}{'T' if tb else 'N'}", dtype, y, want)
    m, n, k = (60, 32, 96) if x.quick else (300, 192, 256)
    a, w, bias = x.rand(m, k, dtype=dtype), x.rand(n, k, dtype=dtype), x.rand(n, dtype=dtype)
    y = x.empty(m, n, dtype=dtype)
    one(x, LINEAR, [a, w, bias], y, [m, n, k, k, k, n])
    close(
        x,
        "linear with bias",
        dtype,
        y,
        x.torch.nn.functional.linear(a.double(), w.double(), bias.double()),
    )


def check_attention(x, dtype):
    torch = x.torch
    shapes = ((2, 4, 4, 100, 100, 64, 1), (1, 8, 2, 33, 130, 128, 0), (1, 2, 1, 20, 50, 200, 1))
    for b, hq, hkv, sq, sk, d, causal in shapes[2 * x.quick :]:
        q, k, v = (
            x.rand(b, hq, sq, d, dtype=dtype),
            x.rand(b, hkv, sk, d, dtype=dtype),
            x.rand(b, hkv, sk, d, dtype=dtype),
        )
        o, lse = torch.empty_like(q), x.empty(b, hq, sq)
        one(x, ATTENTION, [q, k, v], o, [b, hq, hkv, sq, sk, d, causal], [d**-0.5], [o, lse])
        s = q.double() @ k.double().repeat_interleave(hq // hkv, 1).transpose(-1, -2) * d**-0.5
        if causal:
            s = s.masked_fill(
                ~torch.ones(sq, sk, dtype=torch.bool, device="cuda").tril(sk - sq), -math.inf
            )
        close(
            x,
            f"attention {hq}/{hkv} heads of {d}",
            dtype,
            o,
            s.softmax(-1) @ v.double().repeat_interleave(hq // hkv, 1),
        )
        close(x, f"  log-sum-exp of heads of {d}", torch.float32, lse, s.logsumexp(-1))


def check_rows(x, dtype):
    f = x.torch.nn.functional
    for rows, cols in ((64, 33), (300, 256), (7, 5000))[: 1 if x.quick else 3]:
        a, g, b = (
            x.rand(rows, cols, dtype=dtype),
            x.rand(cols, dtype=dtype),
            x.rand(cols, dtype=dtype),
        )
        y, dims, ad = x.torch.empty_like(a), [rows, cols, cols, cols], a.double()
        rms = ad * (ad.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * g.double()
        for name, kind, inputs, extra, aux, want in (
            (
                "layernorm",
                LAYERNORM,
                [a, g, b],
                [],
                [1e-5],
                f.layer_norm(ad, (cols,), g.double(), b.double(), 1e-5),
            ),
            ("rmsnorm", RMSNORM, [a, g], [], [1e-5], rms),
            ("softmax", SOFTMAX, [a], [], [], ad.softmax(-1)),
            ("gelu", GELU, [a], [0], [], f.gelu(ad)),
            ("gelu tanh", GELU, [a], [1], [], f.gelu(ad, approximate="tanh")),
            ("silu", SILU, [a], [], [], f.silu(ad)),
        ):
            one(x, kind, inputs, y, dims + extra, aux)
            close(x, f"{name} {rows}x{cols}", dtype, y, want)


def check_elements(x, dtype):
    cols = 101 if x.quick else 1001
    a, b = x.rand(33, cols, dtype=dtype), x.rand(33, cols, dtype=dtype)
    ad, bd = a.double(), b.double()
    for name, op, want in (
        ("add", ADD, ad + bd),
        ("mul", MUL, ad * bd),
        ("axpb", AXPB, ad * 1.5 + 0.1),
        ("relu", RELU, ad.relu()),
        ("sub", SUB, ad - bd),
        ("scale_add", SCALE_ADD, 1.5 * ad + bd),
    ):
        y = x.torch.empty_like(a)
        inputs = [a] if op in (AXPB, RELU) else [a, b]
        second = 0 if op in (AXPB, RELU) else cols
        one(
            x,
            ELEMENTWISE,
            inputs,
            y,
            [33, cols, cols, second, cols, op, x.dtypes[dtype]],
            [1.5, 0.1],
        )
        close(x, name, dtype, y, want)
    for to in x.dtypes:
        y = x.empty(33, cols, dtype=to)
        one(x, ELEMENTWISE, [a], y, [33, cols, cols, 0, cols, CAST, x.dtypes[to]])
        close(x, f"cast to {str(to)[6:]}", to, y, a.to(to))


def bodies(x):
    """One task each: norm of the error over the norm of a float64 result by torch."""
    torch = x.torch
    for dtype in x.dtypes:
        for check in (check_products, check_attention, check_rows, check_elements):
            check(x, dtype)
    n = 1003 if x.quick else 100003
    a = torch.randint(0, 255, (n,), device="cuda", dtype=torch.uint8)
    for name, kind, inputs, dims in (
        ("memcpy", MEMCPY, [a], [1, n, n, n]),
        ("memset", MEMSET, [], [1, n, 0, n, 7]),
    ):
        y = torch.zeros(n, device="cuda", dtype=torch.uint8)
        graph = x.graph()
        graph.add(kind, inputs, [y], dims, dtype=U8)
        cuda = x.cuda(graph.compile(), workers=1)
        cuda.run()
        cuda.close()
        if not torch.equal(y, a if kind == MEMCPY else torch.full_like(y, 7)):
            x.wrong(name)


# ---- random graphs against an oracle ----


def random_parents(rng, n):
    """Two earlier tasks each, near by, far away, or the input (n)."""
    left = [
        n if i == 0 or rng.random() < 1 / 6 else i - 1 - rng.randrange(min(i, 9)) for i in range(n)
    ]
    return [
        (a, a if i == 0 or rng.random() < 0.5 else rng.randrange(i)) for i, a in enumerate(left)
    ]


def check_graph(x, seed, policy, runs):
    rng = random.Random(seed)
    n, width, workers = 5 + rng.randrange(60), 8, 1 + rng.randrange(2 if x.quick else 24)
    parents = random_parents(rng, n)
    data = x.torch.zeros(n + 1, width, device="cuda")
    graph = x.graph()
    for i, (a, b) in enumerate(parents):
        wish = rng.randrange(workers) if policy != STATIC and rng.random() < 0.2 else -1
        graph.add(
            ELEMENTWISE,
            [data[a], data[b]],
            [data[i]],
            [1, width, width, width, width, ADD, 0],
            worker=wish,
        )
    cuda = x.cuda(
        graph.compile(policy, workers), workers=workers, trace=1, ring=2, timeout_ns=20_000_000_000
    )
    try:
        for run in range(1, runs + 1):
            data[n] = float(run)
            cuda.run()
            want = [0.0] * n + [float(run)]
            for i, (a, b) in enumerate(parents):
                want[i] = C.c_float(want[a] + want[b]).value
            if data[:, 0].tolist() != want or data[:, width - 1].tolist() != want:
                raise Failed(
                    f"graph {seed} by {POLICIES[policy]}, run {run}: a task ran before a parent"
                )
            at = {task: k for k, task in enumerate(cuda.order())}
            if len(at) != n or any(
                p != n and at[p] > at[i] for i, pair in enumerate(parents) for p in pair
            ):
                raise Failed(
                    f"graph {seed} by {POLICIES[policy]}, run {run}: completed out of order"
                )
    finally:
        cuda.close()


def graphs(x):
    """Random graphs: each value says which parents were there;
    a new input each run, so that an old value is found."""
    count, runs = (3, 2) if x.quick else (400, 5)
    for policy in POLICIES:
        for seed in range(count):
            check_graph(x, seed, policy, runs)
        x.report.line(f"  {count} graphs, {runs} runs each, {POLICIES[policy]}: right")
        x.report.number(f"graphs {POLICIES[policy]}", count, "graphs right")


# ---- the demo: rounds of x * 1.5 + 0.1, a barrier after each ----


def steps(x, data, workers, rounds):
    graph, part = x.graph(), data.numel() // workers
    before = []
    for _ in range(rounds):
        now = []
        for w in range(workers):
            mine = data[w * part : (w + 1) * part if w + 1 < workers else data.numel()]
            n = mine.numel()
            task = graph.add(ELEMENTWISE, [mine], [mine], [1, n, n, 0, n, AXPB, 0], [1.5, 0.1])
            for on in before:
                graph.depend(task, on)
            now.append(task)
        before = now
    return graph


def demo(x):
    """4 workers, 10 rounds of x * 1.5 + 0.1, a barrier after each."""
    torch = x.torch
    for policy in POLICIES:
        data = torch.randn(1 << (12 if x.quick else 20), device="cuda")
        want = data.double()
        for _ in range(10):
            want = want * 1.5 + 0.1
        cuda = x.cuda(steps(x, data, 4, 10).compile(policy, 4), workers=4, trace=1)
        cuda.run()
        rounds = [task // 4 for task in cuda.order()]
        cuda.close()
        ok = (
            rounds == sorted(rounds)
            and len(rounds) == 40
            and torch.allclose(data.double(), want, rtol=1e-5, atol=1e-5)
        )
        x.report.line(f"  {POLICIES[policy]:10} rounds in order, values right: {ok}")
        if not ok:
            x.wrong(f"the demo by {POLICIES[policy]}")
