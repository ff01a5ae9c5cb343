// A minimal agent for svc-ingest, written from docs/protocol.md: it registers, keeps a heartbeat stream
// open, reports the load of this machine, and keeps what is not acknowledged. Samples survive a lost
// connection, but not a restart.

import { execFileSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";

import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";

const { values: options } = parseArgs({
  options: {
    address: { type: "string", default: "localhost:9443" },
    ca: { type: "string" },
    token: { type: "string", default: "" },
    state: { type: "string", default: "agent-state" },
    samples: { type: "string", default: "0" },
  },
});

const here = import.meta.dirname;
const definitions = loader.loadSync(["svc/ingest/v1/ingest.proto", "refusal.proto"], {
  includeDirs: [path.join(here, "../../proto"), path.join(here, "..")],
  keepCase: true,
  longs: Number, // Sequence numbers stay below 2^53.
  enums: String,
  defaults: true,
  oneofs: true,
});
const { IngestService } = grpc.loadPackageDefinition(definitions).svc.ingest.v1;
const decode = (name, bytes) => definitions[`svc.examples.${name}`].deserialize(bytes);

const about = { version: "example-node" };
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const seconds = (duration) => (duration ? Number(duration.seconds) + duration.nanos / 1e9 : 0);
const wireTime = (ms) => ({ seconds: Math.floor(ms / 1000), nanos: (ms % 1000) * 1e6 });

class Agent {
  runId = randomUUID();
  jwt = null;
  nextSeq = 1;
  unacknowledged = []; // in order of their numbers
  acknowledged = 0; // by this process
  interval = 30;
  failures = 0;
  cpu = readCpu();

  async run() {
    for (;;) {
      const client = new IngestService(options.address, transport());
      try {
        this.jwt ??= await register(client);
        if (await this.heartbeat(client)) return;
      } catch (error) {
        const wait = this.after(error);
        console.log(`${error.message}: again in ${wait.toFixed(1)} s`);
        await sleep(wait);
      } finally {
        client.close();
      }
    }
  }

  /** Returns true when the agent has done what it was asked to, and false to reconnect. */
  async heartbeat(client) {
    const metadata = new grpc.Metadata();
    metadata.set("authorization", `Bearer ${this.jwt}`);
    const stream = client.Heartbeat(metadata);
    stream.write({ hello: { agent: about, host: facts(), run_id: this.runId, sent_at: wireTime(Date.now()) } });
    let timer;
    try {
      for await (const response of stream) {
        switch (response.message) {
          case "welcome":
            this.failures = 0;
            this.apply(response.welcome.settings);
            this.forget(response.welcome.acked_seq);
            this.nextSeq = Math.max(this.nextSeq, response.welcome.acked_seq + 1);
            timer = this.report(stream);
            break;
          case "ack":
            this.acknowledged += this.forget(response.ack.up_to_seq);
            for (const { seq, reason } of response.ack.rejected) console.log(`sample ${seq} was rejected: ${reason}`);
            break;
          case "credential":
            this.jwt = response.credential.jwt;
            break;
          case "settings":
            this.apply(response.settings);
            break;
          case "drain":
            // A real agent opens the new stream before it leaves the old one.
            await sleep(seconds(response.drain.reconnect_after));
            return false;
        }
        if (Number(options.samples) > 0 && this.acknowledged >= Number(options.samples)) {
          stream.write({ goodbye: { reason: "done" } });
          for await (const _ of stream); // Until the service has ended the stream.
          return true;
        }
      }
      return false;
    } finally {
      clearInterval(timer);
      stream.cancel();
    }
  }

  /** Sends everything that is not acknowledged once, and then one sample in each interval. */
  report(stream) {
    let unsent = [...this.unacknowledged];
    const send = () => {
      const sample = { seq: this.nextSeq++, sampled_at: wireTime(Date.now()), vitals: this.vitals() };
      this.unacknowledged.push(sample);
      unsent.push(sample);
      stream.write({ report: { samples: unsent.splice(0, 500) } });
    };
    send();
    return setInterval(send, this.interval * 1000);
  }

  /** What node measures without reading /proc; docs/protocol.md lists the rest. */
  vitals() {
    const [load_1m, load_5m, load_15m] = os.loadavg();
    const before = this.cpu;
    this.cpu = readCpu();
    const total = this.cpu.total - before.total;
    return {
      cpu_percent: total > 0 ? Math.min(100, (100 * (this.cpu.busy - before.busy)) / total) : 0,
      load_1m,
      load_5m,
      load_15m,
      memory_used_bytes: os.totalmem() - os.freemem(),
      memory_total_bytes: os.totalmem(),
      uptime_seconds: Math.floor(os.uptime()),
    };
  }

  apply(settings) {
    this.interval = seconds(settings?.heartbeat_interval) || this.interval;
  }

  forget(upTo) {
    const before = this.unacknowledged.length;
    this.unacknowledged = this.unacknowledged.filter(({ seq }) => seq > upTo);
    return before - this.unacknowledged.length;
  }

  /** What to forget after a refusal, and how long to wait. */
  after(error) {
    const { UNAUTHENTICATED, PERMISSION_DENIED, NOT_FOUND } = grpc.status;
    if ([UNAUTHENTICATED, PERMISSION_DENIED].includes(error.code)) this.jwt = null; // Register again over the same key.
    if (error.code === NOT_FOUND) Object.assign(this, { jwt: null, nextSeq: 1, unacknowledged: [] });
    const { reason, delay } = refusal(error);
    console.log(`refused: ${reason ?? "no reason"}`);
    if (delay !== undefined) return delay * (1 + 0.1 * Math.random());
    return Math.min(120, 1.6 ** this.failures++) * Math.random();
  }
}

async function register(client) {
  for (;;) {
    // While the registration is pending, the decision arrives on the same stream.
    for await (const response of client.Register({ enrolment_token: options.token, host: facts(), agent: about })) {
      console.log(`agent ${response.agent_id}: ${response.status} ${response.message}`);
      if (response.credential) return response.credential.jwt;
    }
    await sleep(3600); // Rejected or revoked: only a person can change that.
  }
}

/** The reason and the retry delay of a refusal. */
function refusal(error) {
  const [bytes] = error.metadata?.get("grpc-status-details-bin") ?? [];
  const found = {};
  for (const { type_url, value } of bytes ? decode("Status", bytes).details : []) {
    if (type_url.endsWith("/google.rpc.ErrorInfo")) {
      const info = decode("ErrorInfo", value);
      if (info.domain === "svc-ingest") found.reason = info.reason;
    } else if (type_url.endsWith("/google.rpc.RetryInfo")) {
      found.delay = seconds(decode("RetryInfo", value).retry_delay);
    }
  }
  return found;
}

/** TLS with the key that is this agent's identity. The key is made once. */
function transport() {
  const [key, certificate] = ["agent.key", "agent.crt"].map((name) => path.join(options.state, name));
  if (!existsSync(certificate)) {
    mkdirSync(options.state, { recursive: true, mode: 0o700 });
    const make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj /CN=agent";
    execFileSync("openssl", [...make.split(" "), "-keyout", key, "-out", certificate], { stdio: "ignore" });
  }
  return grpc.credentials.createSsl(readFileSync(options.ca), readFileSync(key), readFileSync(certificate));
}

function readText(file) {
  return existsSync(file) ? readFileSync(file, "utf8").trim() : "";
}

function facts() {
  return {
    hostname: os.hostname(),
    os: os.type(),
    kernel_version: os.release(),
    arch: os.arch(),
    machine_id: readText("/etc/machine-id"),
    boot_id: readText("/proc/sys/kernel/random/boot_id"),
    cpu_count: os.cpus().length,
    memory_total_bytes: os.totalmem(),
  };
}

function readCpu() {
  const times = os.cpus().map(({ times }) => times);
  const sum = (pick) => times.reduce((all, time) => all + pick(time), 0);
  const total = sum((time) => time.user + time.nice + time.sys + time.idle + time.irq);
  return { total, busy: total - sum((time) => time.idle) };
}

await new Agent().run();
