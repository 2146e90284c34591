"""A helper that speaks the protocol well, and lies or floods: run by `trust` in the place of the real one.

What it does stands in the instance that it is greeted with. `honest` answers each poll twice a second with a pod whose
comment is the time.
"""

import itertools
import json
import os
import threading
import time

import wire
from wire import Frame

lock = threading.Lock()
credit = {}
given = threading.Condition()


def send(frame):
    data = b"".join(wire.encode(part) for part in (wire.split(frame) if frame.kind == wire.RESPONSE else [frame]))
    with lock:
        while data:
            data = data[os.write(1, data) :]


def status(uid, word):
    run = {"state": "running", "message": word * 100, "last": {"message": word * 100}}
    tree = {"version": 1, "uid": uid, "phase": "Running", "result": None}
    return dict(tree, containers={f"c{number:03}": run for number in range(256)})


def observation(number, mode):
    uid = f"pod-{number:07}"
    seen = {"uid": uid, "job_id": "1.a", "claimed": True, "pbs": {"seen": "present", "state": "R"}}
    if mode == "statuses":
        seen["status"] = status(uid, chr(0x1F600))
    if mode == "comments":
        seen["pbs"]["comment"] = chr(0x1F600) * 4096
    return seen


numbers = itertools.count()


def report(mode):
    count = {"statuses": 1, "comments": 18, "observations": 5000, "deep": 1, "endless": 1}[mode]
    start = next(numbers) * count if mode != "endless" else 0
    head = {"cursor": f"a.{start}", "full": start == 0, "complete": True, "more": True, "gone": []}
    head["observations"] = [observation(start + n, mode) for n in range(count)]
    if mode == "deep":
        head["pad"] = [{} for _ in range(250000)]
    return head


def census(frame, mode):
    if mode == "vnodes":
        inner = ",".join(f'"r{number:03}":1' for number in range(20))
        one = '"n{:06}":{{"resources_available":{{' + inner + "}}}}"
        vnodes = '{"nodes":{' + ",".join(one.format(number) for number in range(19000)) + "}}"
    else:
        inner = ",".join(f'"r{number:03}":{{"a":{{}}}}' for number in range(90000))
        vnodes = '{"nodes":{"n":{' + inner + "}}}"
    parts = ['{"Server":{"s":{}}}', '{"Queue":{}}', vnodes]
    sizes = dict(zip(("server_size", "queues_size", "vnodes_size"), map(len, parts), strict=True))
    data = (json.dumps(dict(sizes, at=1, host={"user": "x"})) + "\n" + "".join(parts)).encode()
    for at in range(0, len(data), wire.CHUNK):
        with given:
            given.wait_for(lambda: credit[frame.id] > 0)
            credit[frame.id] -= wire.CHUNK
        send(Frame(frame.id, wire.DATA, {}, data[at : at + wire.CHUNK]))
    send(Frame(frame.id, wire.END))


def answer(frame, mode):
    op = frame.head["op"]
    if op == "hello":
        send(Frame(frame.id, wire.RESPONSE, {"protocol": 1}))
    elif op == "census" and mode in ("vnodes", "values"):
        census(frame, mode)
    elif op != "jobs" or mode == "silent":
        return
    elif mode == "honest":
        time.sleep(0.5)
        seen = {"uid": "pod", "pbs": {"seen": "present", "at": time.time(), "comment": repr(time.time())}}
        head = {"cursor": repr(time.time()), "full": False, "complete": True, "observations": [seen]}
        send(Frame(frame.id, wire.RESPONSE, head))
    elif mode == "frames":
        while True:
            send(Frame(frame.id, wire.RESPONSE, {"cursor": "a"}))
    elif mode == "parts":
        while True:
            send(Frame(frame.id, wire.MORE, {}, b"x" * 64))
    elif mode in ("vnodes", "values"):
        send(Frame(frame.id, wire.RESPONSE, {"cursor": "a", "full": True, "complete": True, "observations": []}))
    else:
        send(Frame(frame.id, wire.RESPONSE, report(mode)))


def main():
    with lock:
        os.write(1, wire.MAGIC)
    decoder, assembler, mode = wire.Decoder(), wire.Assembler(), "honest"
    while True:
        data = os.read(0, 65536)
        if not data:
            os._exit(0)
        for frame in map(assembler.add, decoder.feed(data)):
            if frame is None:
                continue
            if frame.kind == wire.PING:
                send(Frame(0, wire.PONG))
            elif frame.kind == wire.REQUEST:
                mode = frame.head.get("instance", mode)
                credit[frame.id] = wire.CREDIT_WINDOW
                threading.Thread(target=answer, args=(frame, mode), daemon=True).start()
            elif frame.kind == wire.CREDIT:
                with given:
                    credit[frame.id] += frame.head["bytes"]
                    given.notify_all()


if __name__ == "__main__":
    main()
