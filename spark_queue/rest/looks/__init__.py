"""Looks: calls that read messages, sizes, lists or metrics, and change nothing.

They may compute for seconds, and Python runs one thread of a process at a time. So in the process
of the server, they would take this time from all other calls. `spark-queue serve` therefore has a
process for looks.

    contents.py  what looks read, and their budget
    process.py   the process, and how the server calls it
"""
