"""The bounds of moments and durations, in ms: those of Python and of every database."""

#: 9999-12-31T23:59:59.999Z in ms: the last moment at which a message may mature.
MAX_TIME_MS = 253_402_300_799_999
#: 0001-01-01 in ms: the first moment that Python can hold.
MIN_TIME_MS = -62_135_596_800_000
#: The longest delay, lease or retention: every database can hold the moment when it ends.
MAX_DURATION_MS = MAX_TIME_MS // 2
