"""All ranks of a model in this process, saving versions of it."""
from __future__ import annotations

import helios


class SavingGang:
    """`sessions` of every position of `model`, closed after the last test of the class."""

    def __init__(self, test, controller, model, *, tp, pp):
        self.sessions = [
            helios.Session(
                controller,
                rank=helios.Rank(
                    job="j",
                    model=model,
                    pp=p,
                    tp=t,
                    pp_size=pp,
                    tp_size=tp,
                    world_size=tp * pp,
                    global_rank=tp * p + t,
                ),
            )
            for p in range(pp)
            for t in range(tp)
        ]
        for session in self.sessions:
            test.addClassCleanup(session.close, force=True)
        self.step = 0

    def save(self, change=None, **how):
        """Saves a version that starts from version 1's state. change(rank, state, optim) can alter
        both, or return another state."""
        self.step += 1
        for number, session in enumerate(self.sessions):
            state = {n: t.clone() for n, t in session.load_state_dict(version=1).items()}
            optim = {f"exp_avg.{n}": t * 2 for n, t in state.items()}
            if change is not None:
                state = change(number, state, optim) or state
            saved = session.save_state_dict(state, self.step, optim=optim, **how)
        return saved
