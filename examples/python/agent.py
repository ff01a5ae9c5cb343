#!/usr/bin/env python3
"""A minimal agent for svc-ingest, written from docs/protocol.md.

It registers, keeps a heartbeat stream open, reports the load of this machine, and keeps what is not
acknowledged. It leaves out what a real agent needs: samples survive a lost connection, but not a restart.
"""

import argparse
import collections
import os
import queue
import random
import subprocess
import threading
import time
import uuid

import grpc

import refusal_pb2
from svc.ingest.v1 import ingest_pb2 as wire

SERVICE = "/svc.ingest.v1.IngestService/"
FIRST_BACKOFF, LONGEST_BACKOFF, FACTOR = 1.0, 120.0, 1.6


class Agent:
    def __init__(self, options):
        self.options = options
        self.run_id = uuid.uuid4().hex
        self.jwt = None
        self.next_seq = 1
        self.unacknowledged = collections.OrderedDict()  # seq -> Sample
        self.acknowledged = 0  # by this process
        self.interval = 30.0
        self.failures = 0
        self.cpu = read_cpu()

    def run(self):
        while True:
            try:
                with self.channel() as channel:
                    if self.jwt is None:
                        self.jwt = self.register(channel)
                    if self.heartbeat(channel):
                        return
            except grpc.RpcError as error:
                wait = self.after(error)
                print(f"{error.code().name}: {error.details()}: again in {wait:.1f} s", flush=True)
                time.sleep(wait)

    def channel(self):
        key, certificate = identity(self.options.state)
        with open(self.options.ca, "rb") as file:
            trusted = file.read()
        credentials = grpc.ssl_channel_credentials(trusted, key, certificate)
        return grpc.secure_channel(self.options.address, credentials)

    def register(self, channel):
        call = channel.unary_stream(
            SERVICE + "Register",
            request_serializer=wire.RegisterRequest.SerializeToString,
            response_deserializer=wire.RegisterResponse.FromString,
        )
        request = wire.RegisterRequest(enrolment_token=self.options.token, host=facts(), agent=about())
        while True:
            # While the registration is pending, the decision arrives on the same stream.
            for response in call(request):
                print(f"agent {response.agent_id}: {wire.AgentStatus.Name(response.status)} {response.message}", flush=True)
                if response.HasField("credential"):
                    return response.credential.jwt
            time.sleep(3600)  # Rejected or revoked: only a person can change that.

    def heartbeat(self, channel):
        """Returns True when the agent has done what it was asked to, and False to reconnect."""
        call = channel.stream_stream(
            SERVICE + "Heartbeat",
            request_serializer=wire.HeartbeatRequest.SerializeToString,
            response_deserializer=wire.HeartbeatResponse.FromString,
        )
        outgoing = queue.SimpleQueue()
        hello = wire.Hello(agent=about(), host=facts(), run_id=self.run_id)
        hello.sent_at.GetCurrentTime()
        outgoing.put(wire.HeartbeatRequest(hello=hello))
        responses = call(iter(outgoing.get, None), metadata=[("authorization", f"Bearer {self.jwt}")])
        over = threading.Event()
        try:
            for response in responses:
                kind = response.WhichOneof("message")
                if kind == "welcome":
                    self.failures = 0
                    self.welcomed(response.welcome)
                    threading.Thread(target=self.report, args=(outgoing, over), daemon=True).start()
                elif kind == "ack":
                    self.acked(response.ack)
                elif kind == "credential":
                    self.jwt = response.credential.jwt
                elif kind == "settings":
                    self.apply(response.settings)
                elif kind == "drain":
                    # A real agent opens the new stream before it leaves the old one.
                    time.sleep(response.drain.reconnect_after.ToMilliseconds() / 1000)
                    return False
                if self.options.samples and self.acknowledged >= self.options.samples:
                    over.set()
                    outgoing.put(wire.HeartbeatRequest(goodbye=wire.Goodbye(reason="done")))
                    for _ in responses:  # Until the service has ended the stream.
                        pass
                    return True
            return False
        finally:
            over.set()
            outgoing.put(None)

    def welcomed(self, welcome):
        self.apply(welcome.settings)
        self.forget(welcome.acked_seq)
        self.next_seq = max(self.next_seq, welcome.acked_seq + 1)

    def apply(self, settings):
        self.interval = settings.heartbeat_interval.ToMilliseconds() / 1000 or self.interval

    def acked(self, ack):
        self.acknowledged += self.forget(ack.up_to_seq)
        for rejection in ack.rejected:
            print(f"sample {rejection.seq} was rejected: {rejection.reason}", flush=True)

    def forget(self, up_to):
        done = [seq for seq in list(self.unacknowledged) if seq <= up_to]
        for seq in done:
            del self.unacknowledged[seq]
        return len(done)

    def report(self, outgoing, over):
        """Sends everything that is not acknowledged once, and then one sample in each interval."""
        unsent = list(self.unacknowledged.values())
        while not over.is_set():
            self.unacknowledged[self.next_seq] = self.sample()
            unsent.append(self.unacknowledged[self.next_seq])
            self.next_seq += 1
            outgoing.put(wire.HeartbeatRequest(report=wire.Report(samples=unsent[:500])))
            unsent = unsent[500:]
            over.wait(self.interval)

    def sample(self):
        sample = wire.Sample(seq=self.next_seq)
        sample.sampled_at.GetCurrentTime()
        vitals, previous = sample.vitals, self.cpu
        self.cpu = read_cpu()
        busy, total = (now - then for now, then in zip(self.cpu, previous))
        vitals.cpu_percent = min(100.0, max(0.0, 100.0 * busy / total)) if total else 0.0
        vitals.load_1m, vitals.load_5m, vitals.load_15m = os.getloadavg()
        memory = read_memory()
        vitals.memory_total_bytes = memory["MemTotal"]
        vitals.memory_used_bytes = memory["MemTotal"] - memory["MemAvailable"]
        vitals.swap_total_bytes = memory["SwapTotal"]
        vitals.swap_used_bytes = memory["SwapTotal"] - memory["SwapFree"]
        with open("/proc/uptime") as file:
            vitals.uptime_seconds = int(float(file.read().split()[0]))
        vitals.process_count = sum(name.isdigit() for name in os.listdir("/proc"))
        vitals.network_rx_bytes, vitals.network_tx_bytes = read_network()
        root = os.statvfs("/")
        vitals.disks.add(
            mount_point="/",
            total_bytes=root.f_blocks * root.f_frsize,
            used_bytes=(root.f_blocks - root.f_bfree) * root.f_frsize,
        )
        return sample

    def after(self, error):
        """What to forget after a refusal, and how long to wait."""
        reason, hint = refusal(error)
        if error.code() == grpc.StatusCode.UNAUTHENTICATED or error.code() == grpc.StatusCode.PERMISSION_DENIED:
            self.jwt = None  # Register again over the same key.
        if error.code() == grpc.StatusCode.NOT_FOUND:
            self.jwt, self.next_seq = None, 1
            self.unacknowledged.clear()
        print(f"refused: {reason or 'no reason'}", flush=True)
        if hint is not None:
            return hint * (1 + 0.1 * random.random())
        bound = min(LONGEST_BACKOFF, FIRST_BACKOFF * FACTOR**self.failures)
        self.failures += 1
        return bound * random.random()


def refusal(error):
    """The reason and the retry delay of a refusal."""
    trailers = dict(error.trailing_metadata() or ())
    status = refusal_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
    reason, delay = None, None
    for detail in status.details:
        if detail.type_url.endswith("/google.rpc.ErrorInfo"):
            info = refusal_pb2.ErrorInfo.FromString(detail.value)
            reason = info.reason if info.domain == "svc-ingest" else None
        elif detail.type_url.endswith("/google.rpc.RetryInfo"):
            delay = refusal_pb2.RetryInfo.FromString(detail.value).retry_delay.ToMilliseconds() / 1000
    return reason, delay


def identity(folder):
    """The key that is this agent's identity, and its certificate; made once."""
    key, certificate = os.path.join(folder, "agent.key"), os.path.join(folder, "agent.crt")
    if not os.path.exists(certificate):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
             "-days", "36500", "-subj", "/CN=agent", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )
    with open(key, "rb") as file, open(certificate, "rb") as other:
        return file.read(), other.read()


def about():
    return wire.AgentInfo(version="example-python")


def facts():
    name = os.uname()
    return wire.HostFacts(
        hostname=name.nodename,
        os=name.sysname,
        kernel_version=name.release,
        arch=name.machine,
        machine_id=read_text("/etc/machine-id"),
        boot_id=read_text("/proc/sys/kernel/random/boot_id"),
        cpu_count=os.cpu_count(),
        memory_total_bytes=read_memory()["MemTotal"],
    )


def read_text(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def read_memory():
    with open("/proc/meminfo") as file:
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}


def read_cpu():
    """Busy and all ticks since the boot."""
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]  # idle and iowait
    return sum(ticks) - idle, sum(ticks)


def read_network():
    received = sent = 0
    with open("/proc/net/dev") as file:
        for line in file.readlines()[2:]:
            name, fields = line.split(":")
            if os.path.exists(f"/sys/class/net/{name.strip()}/device"):
                received += int(fields.split()[0])
                sent += int(fields.split()[8])
    return received, sent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="localhost:9443", help="host:port of the service")
    parser.add_argument("--ca", required=True, help="the certificate that the server's must chain to, PEM")
    parser.add_argument("--token", default="", help="an enrolment token; needed once")
    parser.add_argument("--state", default="agent-state", help="the folder of the agent's key")
    parser.add_argument("--samples", type=int, default=0, help="stop after so many acknowledged samples")
    Agent(parser.parse_args()).run()


if __name__ == "__main__":
    main()
