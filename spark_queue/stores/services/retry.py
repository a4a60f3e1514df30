"""When a failed message is due again: one formula for all that retries, keuss' too.

Who retries says how, as data: see `RetryPolicy`.
"""

from __future__ import annotations

from typing import Any

from spark_queue.stores.policy import RetryPolicy

#: Powers above it exceed any `longest`, and take long to compute.
MAX_EXPONENT = 64


def exponential(base: float, longest: float) -> RetryPolicy:
    """Return the policy that doubles the delay with each failure, up to `longest`."""
    return RetryPolicy(base, growth=2, longest=longest)


def keuss_retry(base: float, factor: float) -> RetryPolicy:
    """Return the policy of keuss: `base` seconds, and `factor` more for each failure."""
    return RetryPolicy(base, step=factor)


def retry_delay(policy: RetryPolicy, tries: Any) -> Any:
    """Return the delay of a message that has failed again, after `tries` earlier failures.

    `tries` may be a column of Spark if the policy neither multiplies nor ends.
    """
    delay = tries * policy.step + policy.base
    if policy.growth != 1:
        delay = tries * policy.step + policy.base * policy.growth ** min(max(tries, 0), MAX_EXPONENT)
    return delay if policy.longest is None else min(delay, policy.longest)
