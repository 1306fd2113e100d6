"""How many examples a property is tried on: `EXAMPLES` times its own budget, a third in `make check`, many in the soak.

Hypothesis marks its tests `hypothesis`, so the long form of every property is `EXAMPLES=50 pytest -m hypothesis`.
"""

import os

#: a bound on hanging, never on speed: nothing that works takes as long, however busy the machine is
HANG_S = 60.0


def examples(count: int) -> int:
    return max(1, round(count * float(os.environ.get("EXAMPLES", "1"))))
