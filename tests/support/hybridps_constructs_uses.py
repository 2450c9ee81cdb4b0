"""Parameters and gradients: rows of the table in docs/hybridps.md (see hybridps_constructs.py)."""
from __future__ import annotations

import copy
import os
import threading
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

import hybridps
from hybridps_constructs import WIDTH, Student, World, layers, row


class Listed(nn.Module):
    """Weights in a plain list, in a closure, and returned by a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = layers(), Returned()
        weight = self.layer[0].weight
        self.kept = [self.layer[2].weight]
        self.__dict__["first"] = lambda x: F.linear(x, weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(torch.tanh(self.first(x)), self.kept[0]).tanh()
        return self.layer[4](hidden) @ self.scale()


class Returned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH))

    def forward(self) -> torch.Tensor:
        return self.weight


# ---- parameters that are read ----


@row("penalty of parameters before the forward")
def penalty(w):
    return w.train(4, penalty=lambda m: 1e-3 * sum(p.abs().sum() for p in m.parameters()))


@row("norm, `state_dict()` and `parameters()` within a forward", make=Student)
def within(w):
    w.model.inner = lambda m: m.seen.append(
        [p.norm() for p in m.two.parameters()] + [v.clone() for v in m.state_dict().values()]
    )
    return w.train(3) + w.model.seen


@row("moving average of another network within a forward, by `p.data`", make=Student)
def average(w):
    def update(m):
        for one, two in zip(m.one.parameters(), m.two.parameters()):
            two.data = two.data * 0.9 + one.data * 0.1

    w.model.inner = update
    return w.train(4)


@row("parameters from a list, a closure, a forward's result", make=Listed)
def listed(w):
    return w.train(4)


class Slotted(nn.Module):
    """One part returns its result in an opaque object; the other part uses a weight of it."""

    class Out:
        __slots__ = ("value",)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = layers(1), layers(2)
        self.inner = Inner(self.one)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.inner(x).value)


class Inner(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        out = Slotted.Out()
        out.value = torch.tanh(self.layer(x) @ self.layer[4].weight[:, :WIDTH].t())
        return out


@row("a forward's result in an object with `__slots__`", make=Slotted)
def slotted(w):
    return w.train(4)


@row(
    "`p.data` taken at the beginning of a forward, and written while other modules run",
    make=Student,
)
def kept_in_a_pass(w):
    targets: list[torch.Tensor] = []

    def take(model):
        targets[:] = [p.data for p in model.two.parameters()]

    def follow(*_):
        for mine, p in zip(targets, w.model.one.parameters()):
            mine.mul_(0.9).add_(p.data, alpha=0.1)

    w.model.inner = take
    for layer in w.model.one:
        layer.register_forward_hook(follow)
    return w.train(3) + [w.evaluate()]


@row("`functional_call` with other values")
def functional(w):
    call = getattr(torch, "func", torch.nn.utils.stateless).functional_call
    out = w.train(2)
    given = {name: (p * 0.5).detach().requires_grad_() for name, p in w.model.named_parameters()}
    result = call(w.model, given, (w.batches(1)[0][0],))
    result.sum().backward()
    return (
        out
        + [result, [v.grad for v in given.values()], [p.grad for p in w.params()]]
        + w.train(2, 2)
    )


@row(
    "`torch.func`: gradients per sample (`vmap`, `grad`, `functional_call`), `jacrev` of the model",
    needs="func",
)
def per_sample(w):
    out, (x, y) = w.train(1), w.batches(1, 5)[0]

    def loss(params, one, wanted):
        return F.mse_loss(torch.func.functional_call(w.model, params, (one[None],)), wanted[None])

    params = {name: p.detach() for name, p in w.model.named_parameters()}
    grads = torch.vmap(torch.func.grad(loss), (None, 0, 0))(params, x, y)
    out += [grads, torch.func.jacrev(lambda one: w.model(one[None])[0])(x[0])]
    w.optimizer.zero_grad()
    for name, p in w.model.named_parameters():
        p.grad = grads[name].clamp(-0.1, 0.1).mean(0)
    w.optimizer.step()
    return out + w.train(1, 1)


@row("parameters tied while they are managed (`a.weight = b.weight`)", make=Student)
def tied(w):
    w.model.two[2].weight = w.model.one[2].weight
    return w.train(3)


@row("hooks in backward read parameters of other modules", make=Student)
def read_in_backward(w):
    seen, kept = [], [w.model.two[2].weight, w.model.one[0].weight]

    def look(module, given, out):
        if out.requires_grad:
            out.register_hook(lambda _: seen.append([p.detach().clone() for p in kept]))

    w.model.one.register_forward_hook(look)
    return w.train(3) + seen


@row("a second thread evaluates while one trains")
def threads(w):
    over, wrong = threading.Event(), []

    def evaluate():
        while not over.is_set():
            if not w.evaluate().isfinite().all() or not sum(p.sum() for p in w.params()).isfinite():
                wrong.append(1)

    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        losses = w.train(12)
    finally:
        over.set()
        thread.join()
    return losses + wrong


@row("a forked child reads parameters")
def child_reads(w):
    losses = w.train(2)
    read, write = os.pipe()
    if os.fork() == 0:
        total = torch.stack([p.sum() for p in w.params()]).sum().item()
        os.write(write, repr(total).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = file.read()
    os.wait()
    return losses + [told]


class Told(torch.utils.data.Dataset):
    """Holds a model in a closure that workers read."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.stack([p.detach().sum() for p in self.model.parameters()]) + number


@row("workers of a DataLoader read parameters of the model that they close over")
def workers(w):
    out = w.train(2)
    out += list(
        torch.utils.data.DataLoader(Told(w.model), batch_size=2, num_workers=1, timeout=100)
    )
    return out + w.train(1, 2)


@row("a forked child uses the model", "is used after a fork, in process")
def child_uses(w):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            w.evaluate()
            said = "nothing"
        except hybridps.HybridPSError as error:
            said = str(error)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.wait()
    if said != "nothing":
        raise hybridps.HybridPSError(said)
    return []


@row("a child forked between forward and backward, or within a forward, reads what was there then")
def child_of_a_pass(w):
    children = []

    def fork(*_):
        go, told = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(go[1])
            os.read(go[0], 1)  # until the parent has gone on
            seen = [w.params(), [p.grad for p in w.params()], w.model.state_dict()]
            flat = [
                t for v in seen for t in (v.values() if isinstance(v, dict) else v) if t is not None
            ]
            os.write(told[1], repr([t.double().sum().item() for t in flat]).encode())
            os._exit(0)
        os.close(go[0])
        os.close(told[1])
        children.append((go[1], told[0]))

    losses = w.train(2)
    w.optimizer.zero_grad()
    w.backward(2)  # the next one accumulates
    x, y = w.batches(1, 3)[0]
    hook = w.model[2].register_forward_hook(fork)
    loss = F.mse_loss(w.model(x), y)
    hook.remove()
    fork()
    loss.backward()
    w.optimizer.step()
    losses += w.train(2, 4)
    for go, _ in children:  # all at once: the second child inherits the first one's pipe, too
        os.close(go)
    for _, told in children:
        with os.fdopen(told) as file:
            losses.append(file.read())
        os.wait()
    return losses


# ---- what is kept ----


@row(
    "`.data`, `state_dict()`, gradients, views, arrays, `optimizer.state_dict()` read and written"
    " after `close()`"
)
def after_close(w):
    losses = w.train(3)
    grads = [p.grad for p in w.params()]
    kept = [
        w.model.state_dict(),
        grads,
        [g.view(-1)[1:] for g in grads],
        w.params()[1].data,
        [p.detach().numpy() for p in w.params()],
        grads[0].numpy(),
        w.optimizer.state_dict()["state"],
    ]

    def later():
        kept[2][0].mul_(2)
        kept[4][1][:] *= 0.5  # a parameter that plain torch then trains on
        return losses + kept + w.train(2, 3)

    return later


@row("`loss.backward()` after `close()`")
def backward_after(w):
    losses = w.train(2)
    w.optimizer.zero_grad(set_to_none=True)
    x, y = w.batches(1)[0]
    loss = F.mse_loss(w.model(x), y)

    def later():
        loss.backward()
        return losses + [p.grad for p in w.params()]

    return later


@row("best `state_dict()` kept while another model is managed")
def best(w):
    losses = w.train(3)
    kept = w.model.state_dict()

    def later():
        other = World(lambda: layers(7), w.device)
        other.manage()
        other.train(2)
        other.close()
        return losses + [kept]

    return later


@row("gradients kept over `zero_grad(set_to_none=True)`")
def gradients(w):
    kept = []
    for number in range(4):
        w.optimizer.zero_grad(set_to_none=True)
        w.backward(number)
        kept.append([p.grad if number % 2 else p.grad.view(-1) for p in w.params()])
        w.optimizer.step()
    return kept


@row("a tensor assigned to `p.grad` and kept")
def assigned(w):
    kept = [torch.full_like(p, 0.1) for p in w.params()]
    for p, grad in zip(w.params(), kept):
        p.grad = grad
    out = []
    for number in range(3):
        w.backward(number)
        w.optimizer.step()
        out.append([grad.clone() for grad in kept])
        for grad in kept:
            grad.mul_(0.5)
    return out


@row("`p.grad` assigned between forward and backward, and taken by a hook of backward")
def assigned_in_a_pass(w):
    one, two, out = w.params()[2], w.params()[5], []
    node = two.expand_as(two).grad_fn.next_functions[0][0]

    def take(*_):
        out.append(None if two.grad is None else two.grad.clone())
        two.grad = None

    node.register_hook(take)
    for number in range(3):
        x, y = w.batches(1, number)[0]
        w.backward(number)
        loss = F.mse_loss(w.model(x), y)
        given = [torch.full_like(p, 0.1) for p in (one, two)]
        one.grad, two.grad = given
        loss.backward()
        w.backward(number)
        out += [g.clone() for g in given] + [one.grad is given[0]]  # backward has added to them
        w.optimizer.step()
    return out


def sparse() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(8, WIDTH, sparse=True), nn.Linear(WIDTH, WIDTH))


@row(
    "gradients of frozen parameters, and sparse ones, read and assigned within a forward",
    make=sparse,
)
def apart(w):
    table, frozen = w.model[0].weight, w.model[1].bias
    frozen.requires_grad_(False)
    frozen.grad = torch.full_like(frozen, 0.3)
    sgd, out = w.register(torch.optim.SGD(w.params(), lr=1e-2)), []

    def look(*_):
        out.extend(None if p.grad is None else p.grad.clone() for p in (table, frozen))
        frozen.grad = None if len(out) == 4 else torch.full_like(frozen, 0.1 * len(out))
        out.append(None if frozen.grad is None else frozen.grad.clone())

    w.model[1].register_forward_hook(look)
    for number in range(4):
        w.model(torch.arange(number, number + 3)).square().mean().backward()
        sgd.step()
        if number == 2:
            sgd.zero_grad(set_to_none=True)
    return out


@row("writes through `p.data` and NumPy arrays from before")
def aliases(w):
    data, arrays = [p.data for p in w.params()], [p.detach().numpy() for p in w.params()]
    out = []
    for number in range(4):
        out += w.train(1, number) + [w.evaluate()]
        for alias in (data, arrays)[number % 2]:
            alias *= 0.9
        out.append(w.evaluate())
    return out


@row("`backup = p.data; p.data = average; ...; p.data = backup`")
def swapped(w):
    out = []
    for number in range(3):
        out += w.train(1, number)
        backup = [p.data for p in w.params()]
        for p in w.params():
            p.data = p.data * 0.5
        out.append(w.evaluate())
        for p, data in zip(w.params(), backup):
            p.data = data
    return out


@row("`state_dict()` kept, `p.data` swapped for others and back, then assigned anew")
def kept_and_swapped(w):
    out = w.train(1)
    kept, p = w.model.state_dict(), w.params()[0]
    for number in range(2):
        backup = p.data
        p.data = p.data * 0.5
        out.append(w.evaluate())
        p.data = backup
        del backup
        out.append(list(kept.values())[0].clone())
    p.data = p.data * 0.9
    return out + w.train(2, 2) + list(kept.values())[:1]


@row("parameters of a kept `state_dict()` written after a backward that failed")
def written_after_failure(w):
    def fail(gradient):
        raise ZeroDivisionError

    out, kept = w.train(1), w.model.state_dict()
    for number in range(2):
        hidden = w.model[:2](w.batches(1)[0][0])
        hidden.register_hook(fail)
        try:
            w.model[2:](hidden).sum().backward()
        except ZeroDivisionError:
            pass
        for value in kept.values():
            value.mul_(0.9)
        out.append(w.evaluate())
        for p in w.params():
            p.grad = None
        out += w.train(1, number)
    return out


@row("`p.grad.data = values`")
def other_gradient(w):
    out, sgd = [], w.register(torch.optim.SGD(w.model.parameters(), lr=1e-2))
    for number, optimizer in enumerate((w.optimizer, sgd) * 2):
        w.backward(number)
        kept = [p.grad for p in w.params()]
        for p in w.params():
            p.grad.data = p.grad.data * 0.5
        if number > 1:
            w.backward(number + 4)  # adds to them
        optimizer.step()
        out += [k.clone() for k in kept]
        optimizer.zero_grad(set_to_none=number % 2 == 0)
    return out


@row("`p.data = q.data` of another parameter", "two parameters in the same memory")
def shared(w):
    w.model[1] = nn.Tanh()
    w.params()[1].data = w.params()[3].data
    return []


# ---- hooks, copies, writes ----


@row("hooks of AccumulateGrad nodes (`main_grad` of Megatron and apex)")
def main_grad(w):
    nodes, out = [], []

    def hook(p):
        def take(*_):
            if p.grad is not None:
                p.main_grad.add_(p.grad.data)
            p.grad = None

        return take

    for p in w.params():
        p.main_grad = torch.zeros_like(p, requires_grad=False)
        nodes.append(p.expand_as(p).grad_fn.next_functions[0][0])
        nodes[-1].register_hook(hook(p))
    for number in range(2):
        w.backward(2 * number)
        w.backward(2 * number + 1)
        out.append([p.grad is None for p in w.params()])
        for p in w.params():
            p.grad = p.main_grad.clone()
            p.main_grad.zero_()
        w.optimizer.step()
    return out


def hooked() -> nn.Module:
    """Its gradients go to main_grad through hooks that are older than any client."""
    model = layers()
    model.nodes = []
    for p in model.parameters():

        def take(*_, p=p):
            if p.grad is not None:
                p.main_grad.add_(p.grad.data)
            p.grad = None

        p.main_grad = torch.zeros_like(p, requires_grad=False)
        model.nodes.append(p.expand_as(p).grad_fn.next_functions[0][0])
        model.nodes[-1].register_hook(take)
    return model


@row("such hooks from before the model was managed", make=hooked)
def main_grad_of_before(w):
    out = []
    for number in range(3):
        w.backward(2 * number)
        w.backward(2 * number + 1)
        out.append([p.grad is None for p in w.params()])
        for p in w.params():
            p.grad = p.main_grad.clone()
            p.main_grad.zero_()
        w.optimizer.step()
        w.optimizer.zero_grad(set_to_none=True)
    return out


@row("modules made of a copy of `module.__dict__` (MAML)")
def maml(w):
    def patched(module):
        kind = type("Patched", (type(module),), {"__init__": nn.Module.__init__})
        out = kind()
        for name, value in module.__dict__.items():
            if name not in ("_parameters", "_buffers", "_modules"):
                setattr(out, name, value)
        for name, child in module._modules.items():
            out._modules[name] = patched(child)
        for name, p in module._parameters.items():
            out._parameters[name] = None if p is None else nn.Parameter(p.detach() * 2)
        return out

    losses = w.train(2)
    fast = patched(w.model)
    out = fast(w.batches(1)[0][0])
    out.sum().backward()
    return (
        losses
        + [out, [p.grad for p in fast.parameters()], [p.grad for p in w.params()]]
        + w.train(1)
    )


@row(
    "a parameter written in place within a forward",
    "written in place between forward and",
    make=Student,
)
def in_place(w):
    def update(m):
        with torch.no_grad():
            m.two[0].weight.mul_(0.9)

    w.model.inner = update
    return w.train(1)


@row(
    "`load_state_dict()` within a forward",
    "load_state_dict in a forward or a backward",
    make=Student,
)
def load_within(w):
    w.model.inner = lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()))
    return w.train(1)
