"""For scripts/ha: writes the time whenever an instance has acknowledged more samples, and while a PostgreSQL is the primary."""

import re
import threading
import time
import urllib.request

COUNTER = re.compile(r"^svc_ingest_samples_acknowledged_total (\d+)", re.MULTILINE)


def get(machine, path):
    """None if there is no whole answer with status 200."""
    try:
        with urllib.request.urlopen(f"http://10.0.0.1{machine}:{path}", timeout=1) as answer:
            return answer.read().decode()
    except OSError:
        return None


def acknowledged(machine):
    before = None
    while True:
        found = COUNTER.search(get(machine, "8080/metrics") or "")
        if found:
            now = int(found[1])
            if before is not None and now > before:
                print("acked", time.time(), flush=True)
            before = now
        time.sleep(0.2)


def primary(machine):
    while True:
        if get(machine, "8008/primary") is not None:
            print("primary", time.time(), flush=True)
        time.sleep(0.2)


for look in acknowledged, primary:
    for machine in 1, 2, 3:
        threading.Thread(target=look, args=[machine], daemon=True).start()
threading.Event().wait()
