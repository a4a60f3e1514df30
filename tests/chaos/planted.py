"""Does the proof notice a bug? `python -m tests.chaos.planted [NAME …] [-- arguments of make chaos]`

Each bug is planted in a copy of the tree, which then has to fail. docs/reliability.md tells what came of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: name -> file below spark_queue, what is right, what it becomes. Each is an error that one might well make.
BUGS: dict[str, tuple[str, str, str]] = {
    "no ledger check": (
        "store/ledger.py",
        "    last = NOTHING if ledger is None else ledger.batch\n",
        "    return False\n    last = NOTHING if ledger is None else ledger.batch\n",
    ),
    "visible before the ledger": (
        "store/ledger.py",
        "        if store.set_note(PREFIX + sink, value",
        "        store.publish(stages)\n        if store.set_note(PREFIX + sink, value",
    ),
    "ledger, and never published again": (
        "store/ledger.py",
        "            winners: Sequence[str] = found.stages if found and found.batch == batch else ()\n"
        "            break\n",
        "            return 0\n",
    ),
    "all attempts win": (
        "spark/writer.py",
        "                rows, strict = sum(stages.values())",
        "                there = stores[ns].staged(f'{sink}/{number}')\n"
        "                stages = {name: sum(one.rows for one in there if one.stage == name)\n"
        "                          for name in {one.stage for one in there}}\n"
        "                rows, strict = sum(stages.values())",
    ),
    "losing attempts are not swept": (
        "store/ledger.py",
        "        if number <= batch:\n            store.unstage(",
        "        if number < 0:\n            store.unstage(",
    ),
    "committed when it is read": (
        "spark/share.py",
        "        _check_fetched(store, options, share, rows)\n",
        "        _check_fetched(store, options, share, rows)\n        store.commit(queue, share.tag)\n",
    ),
    "committed when it is planned": (
        "spark/consumer.py",
        "        self._committed = seq\n",
        "        self._committed = seq\n        self._store.commit(self._queue, f\"{end['consumer']}/{seq + 1}\")\n",
    ),
    "a new epoch at each start": (
        "spark/consumer.py",
        "        self.commit(start)\n",
        "        start = {**start, 'consumer': self.initial['consumer']}\n        self.commit(start)\n",
    ),
    "commit without a fence": (
        "store/sqlite.py",
        "            held, values = _among(leases, ids)\n            if history:\n",
        "            held, values = _among(leases, ids)\n"
        "            if ids is not None:\n"
        "                held = 'queue = ? AND id IN (SELECT value FROM json_each(?))'\n"
        "                values = (_number(db, queue), json.dumps(list(ids)))\n"
        "            if history:\n",
    ),
}

#: Where those that are killed have to be few kinds for the short time between two steps to be met soon.
AIMED = {
    "visible before the ledger": ["--victim", "sink"],
    "a sink that delivers at least once": ["--victim", "worker"],
}

#: What promises less, and has to fail as well.
OPTIONS = {
    "a sink that delivers at least once": ["--sink", "delivery=at-least-once"],
    "a MongoDB that acknowledges before it journals": [
        "--store",
        "mongodb",
        "--mongodb",
        "w=1&journal=false",
    ],
    "a Redis without a log": ["--store", "redis", "--aof", "none"],
}


def main(words):
    cut = words.index("--") if "--" in words else len(words)
    names, rest = words[:cut] or [*BUGS, *OPTIONS], words[cut + 1 :]
    missed = [name for name in names if not caught(name, rest)]
    print(f"not caught: {missed}" if missed else f"all {len(names)} caught", flush=True)
    return int(bool(missed))


def plant(name, root):
    """Plant a bug in the copy of the tree that is in this folder."""
    file, right, wrong = BUGS[name]
    path = Path(root, "spark_queue", file)
    text = path.read_text()
    assert text.count(right) == 1, f"{file} has changed: plant {name!r} anew"
    path.write_text(text.replace(right, wrong))


def caught(name, arguments):
    with tempfile.TemporaryDirectory(prefix="spark_queue-planted-") as folder:
        for one in ("spark_queue", "pyspark_queue", "tests"):
            shutil.copytree(
                ROOT / one, Path(folder, one), ignore=shutil.ignore_patterns("node_modules", "__pycache__")
            )
        if (ROOT / ".services").exists():
            Path(folder, ".services").symlink_to(ROOT / ".services")  # where a mongod may lie
        if name in BUGS:
            plant(name, Path(folder))
        print(f"--- {name}", flush=True)
        command = [sys.executable, "-m", "tests.chaos", "--kills", "20", "--seed", "7"]
        command += [*OPTIONS.get(name, []), *AIMED.get(name, []), *arguments]
        command += [] if "--store" in command else ["--store", "sqlite"]
        return subprocess.run(command, cwd=folder, env=os.environ | {"TMPDIR": folder}, check=False).returncode == 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
