"""Operations: release reservations, redrive dead letters, replay history, recover sinks.

Each function opens the store of a URL and closes it again. It checks everything before it changes
anything. If it was interrupted, call it again. Durations are in seconds, moments are `datetime`
with a time zone, and "now" is the time of the database. All raise `UsageError` for a wrong call.
All raise `StoreError` if the database refuses or fails, or if a newer version wrote its data.
"""

from spark_queue.lazy_names import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
