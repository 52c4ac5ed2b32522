"""How an engine's threads wait for each other where other processes compute beside it.

An operation ends with its slowest thread. In GNU OpenMP, which torch brings on Linux, the other threads spin for some
10 ms (300 000 rounds) before they sleep. Where another process wants their core, they spin away the time in which the
slow one could have run: two engines on two cores, as while Triton replaces one, come to a tenth of their speed.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPIN_COUNT = 4000  # some 0.1 ms, longer than between two operations of a step: an engine alone loses nothing
OWN_CHOICE = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def spin_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Has idle threads sleep soon, unless the environment says how they wait.

    OpenMP reads the environment once, when torch is imported: to be called before.
    See https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html.
    """
    if not any(name in environment for name in OWN_CHOICE):
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
