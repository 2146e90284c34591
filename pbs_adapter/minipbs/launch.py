"""Starting a job's first process and delivering its output: the parts of the MoM that run as the user.

`spec` is the message "start" that the server sends: job, user, uid, gid, groups, home, shell, argv or script, env, out,
err (absolute paths), join, keep, umask, dirs. Everything that touches the user's files happens in a child that has
become the user.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import Any, NoReturn

DEFAULT_UMASK = 0o77


def start(spec: dict[str, Any]) -> int:
    """Fork the job as a session leader and return its pid. Raises OSError."""
    _prepare(spec)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _become_job(spec, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        failure = pipe.read()  # empty when exec closed the pipe
    if failure:
        os.waitpid(pid, 0)
        raise OSError(failure.decode())
    return pid


def _prepare(spec: dict[str, Any]) -> None:
    """What only the MoM may write: the node file, the script's copy, the spool files, the temporary directory."""
    uid, gid = spec["uid"], spec["gid"]
    files = {spec["nodefile"]: ("\n".join(spec["nodes"]) + "\n", 0o644)}
    if spec["argv"] is None:
        files[spec["script_path"]] = (spec["script"], 0o700)
    for path in spool_files(spec):
        files[path] = ("", 0o600)
    for path, (text, mode) in files.items():
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), uid, gid)
    os.makedirs(spec["tmpdir"], mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(spec["tmpdir"], uid, gid)


def spool_files(spec: dict[str, Any]) -> list[str]:
    """The files that are delivered at the end; none where the job writes to its destination directly."""
    out, err = outputs(spec)
    return [path for path in dict.fromkeys((out, err)) if path.startswith(spec["spool"])]


def outputs(spec: dict[str, Any]) -> tuple[str, str]:
    """Where stdout and stderr go while the job runs."""
    join, keep = spec["join"], spec["keep"]
    places: dict[str, str] = {}
    for letter, final, suffix in (("o", spec["out"], "OU"), ("e", spec["err"], "ER")):
        if letter in keep and "d" in keep:
            places[letter] = final
        elif letter in keep:
            places[letter] = f"{spec['home']}/{spec['default_names'][letter]}"
        else:
            places[letter] = f"{spec['spool']}/{spec['job']}.{suffix}"
    if join.startswith("o"):
        places["e"] = places["o"]
    elif join.startswith("e"):
        places["o"] = places["e"]
    return places["o"], places["e"]


def become(spec: dict[str, Any]) -> None:
    """Drop root for the job's user; does nothing in a MoM that an ordinary user runs."""
    if os.geteuid() == 0 and (spec["uid"] or spec["gid"]):
        os.setgroups(spec["groups"])
        os.setgid(spec["gid"])
        os.setuid(spec["uid"])


def _become_job(spec: dict[str, Any], write_end: int) -> NoReturn:
    """Between fork and exec."""
    try:
        os.setsid()
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                try:
                    signal.signal(number, signal.SIG_DFL)
                except (OSError, ValueError):
                    continue
        signal.set_wakeup_fd(-1)
        become(spec)
        os.umask(spec["umask"] if spec["umask"] is not None else DEFAULT_UMASK)
        try:
            os.chdir(spec["home"])
        except OSError:
            os.chdir("/")
        _redirect(spec)
        os.umask(spec["umask"] if spec["umask"] is not None else DEFAULT_UMASK)
        argv = spec["argv"]
        if argv is None:
            name = os.path.basename(spec["shell"])
            argv, program = ["-" + name], spec["shell"]
        else:
            program = argv[0]
        os.execvpe(program, argv, spec["env"])
    except BaseException as error:  # noqa: BLE001 (whatever it is, the parent must hear of it, and this child must end)
        os.write(write_end, str(error).encode(errors="replace") or b"failed")
    os._exit(1)


def _redirect(spec: dict[str, Any]) -> None:
    """stdin: for a script the shell reads the script's path from a pipe, as under the real MoM; else /dev/null."""
    if spec["argv"] is None:
        read_end, write_end = os.pipe()
        os.write(write_end, spec["script_path"].encode() + b"\n")
        os.close(write_end)
        os.dup2(read_end, 0)
        os.close(read_end)
    else:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    out, err = outputs(spec)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    descriptor = os.open(out, flags | os.O_TRUNC, 0o666)
    os.dup2(descriptor, 1)
    if err != out:
        other = os.open(err, flags | os.O_TRUNC, 0o666)
        os.dup2(other, 2)
        os.close(other)
    else:
        os.dup2(descriptor, 2)
    os.close(descriptor)


def note(spec: dict[str, Any], text: str) -> None:
    """Append a line of PBS's own to the job's stderr, as the user."""
    pid = os.fork()
    if pid:
        return
    try:
        become(spec)
        with open(outputs(spec)[1], "a") as file:
            file.write(text)
    finally:
        os._exit(0)


def deliver(spec: dict[str, Any], status: int) -> int:
    """Fork a child that moves the spooled output to its destination as the user, and cleans up; its pid.

    0 where there is nothing to move and the cleaning is done already.
    """
    if not spool_files(spec) and not spec["remove"]:
        try:
            os.unlink(spec["nodefile"])
            if spec["argv"] is None:
                os.unlink(spec["script_path"])
            os.rmdir(spec["tmpdir"])
            return 0
        except OSError:
            pass  # the job left files behind: the child removes them
    pid = os.fork()
    if pid:
        return pid
    try:
        spooled = spool_files(spec)
        for path in (spec["nodefile"], spec["script_path"]):
            if os.path.exists(path):
                os.unlink(path)
        shutil.rmtree(spec["tmpdir"], ignore_errors=True)
        for path in spooled:
            os.chmod(path, 0o644)
        helper = os.fork()
        if helper == 0:
            _deliver_as_user(spec, spooled, status)
        _, code = os.waitpid(helper, 0)
        for path in spooled:
            if code == 0:
                os.unlink(path)
            else:
                os.replace(path, f"{spec['spool']}/../undelivered/{os.path.basename(path)}")
    except OSError as error:
        print(f"minipbs-mom: {spec['job']}: {error}", file=sys.stderr)
    finally:
        os._exit(0)


def _deliver_as_user(spec: dict[str, Any], spooled: list[str], status: int) -> NoReturn:
    code = 1
    try:
        become(spec)
        os.umask(spec["umask"] if spec["umask"] is not None else DEFAULT_UMASK)
        remove = spec["remove"] if status == 0 else ""
        for path in spooled:
            letter = "o" if path.endswith(".OU") else "e"
            final = spec["out" if letter == "o" else "err"]
            if os.path.isdir(final):
                final = f"{final}/{os.path.basename(path)}"
            if letter not in remove:
                shutil.copyfile(path, final)
        for letter, path in zip("oe", outputs(spec), strict=True):
            if letter in remove and path not in spooled and os.path.exists(path):
                os.unlink(path)
        code = 0
    finally:
        os._exit(code)
