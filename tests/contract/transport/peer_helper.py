"""The smallest helper that speaks the wire protocol, for tests of the channel: `python3` runs it on the far side."""

import os
import sys
import threading
import time

import wire
from wire import Frame

lock = threading.Lock()
credit = {}
cancelled = []
changed = threading.Condition()


def send(frame):
    with lock:
        for part in wire.split(frame) if frame.kind in (wire.RESPONSE, wire.ERROR) else [frame]:
            write_all(wire.encode(part))


def write_all(data):
    while data:
        data = data[os.write(1, data) :]


def stream(frame):
    """`count` chunks of `size` bytes, then an end or the error asked for."""
    head, ident = frame.head, frame.id
    for index in range(head["count"]):
        with changed:
            while credit[ident] < head["size"] and ident not in cancelled:
                changed.wait()
            if ident in cancelled:
                break
            credit[ident] -= head["size"]
        send(Frame(ident, wire.DATA, {}, bytes([index % 256]) * head["size"]))
    send(Frame(ident, wire.ERROR, head["error"]) if "error" in head else Frame(ident, wire.END))


def answer(frame):
    head, op = frame.head, frame.head["op"]
    if op == "logs" or op == "stream":
        stream(frame)
        return
    if op == "sleep":
        time.sleep(head["seconds"])
    if op == "fail":
        send(Frame(frame.id, wire.ERROR, head["error"]))
        return
    if op == "garbage":
        with lock:
            write_all(b"Segmentation fault\n" * 20)
        return
    if op == "exit":
        os._exit(3)
    known = {"pid": os.getpid(), "cancelled": list(cancelled), "op": op, "head": head}
    send(Frame(frame.id, wire.RESPONSE, dict(known, **head.get("answer", {})), frame.body))


def main():
    write_all(b"some noise" + wire.MAGIC)
    decoder, assembler = wire.Decoder(), wire.Assembler()
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
                credit[frame.id] = wire.CREDIT_WINDOW
                threading.Thread(target=answer, args=(frame,), daemon=True).start()
            else:
                with changed:
                    if frame.kind == wire.CANCEL:
                        cancelled.append(frame.id)
                    elif frame.kind == wire.CREDIT:
                        credit[frame.id] += frame.head["bytes"]
                    changed.notify_all()


if __name__ == "__main__":
    sys.exit(main())
