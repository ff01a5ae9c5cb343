"""For scripts/ha: writes the time whenever an instance has acknowledged more samples, and whenever a PostgreSQL has committed."""

import os
import re
import sys
import threading
import time
import urllib.request

sys.path.append(os.path.join(os.path.dirname(__file__), "../../target/ha/root/usr/lib/python3/dist-packages"))
import psycopg2  # noqa: E402

COUNTER = re.compile(r"^svc_ingest_samples_acknowledged_total (\d+)", re.MULTILINE)
SERVER = "host=10.0.0.1{} dbname=postgres user=postgres password=change-me-1 connect_timeout=2 target_session_attrs=read-write"


def acknowledged(machine):
    before = None
    while True:
        try:
            with urllib.request.urlopen(f"http://10.0.0.1{machine}:8080/metrics", timeout=1) as answer:
                now = int(COUNTER.search(answer.read().decode())[1])
        except (OSError, TypeError):
            now = before
        if before is not None and now > before:
            print("acked", time.time(), flush=True)
        before = now
        time.sleep(0.2)


def commits(machine):
    """A commit that waits for a standby, and so the moment from which the service can acknowledge."""
    while True:
        try:
            connection = psycopg2.connect(SERVER.format(machine))
            connection.autocommit = True
            while True:
                connection.cursor().execute("SELECT pg_logical_emit_message(true, 'probe', '')")
                print("primary", time.time(), flush=True)
                time.sleep(0.2)
        except psycopg2.Error:
            time.sleep(0.2)


for look in acknowledged, commits:
    for machine in 1, 2, 3:
        threading.Thread(target=look, args=[machine], daemon=True).start()
threading.Event().wait()
