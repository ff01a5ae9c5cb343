// A minimal agent for svc-ingest, written from docs/protocol.md: it registers, keeps a heartbeat stream
// open, reports the load of this machine, and keeps what is not acknowledged. Samples survive a lost
// connection, but not a restart.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"math/big"
	mathrand "math/rand"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	wire "example.com/svc-agent/svc/ingest/v1"
)

var (
	address = flag.String("address", "localhost:9443", "host:port of the service")
	ca      = flag.String("ca", "", "the certificate that the server's must chain to, PEM")
	token   = flag.String("token", "", "an enrolment token; needed once")
	state   = flag.String("state", "agent-state", "the folder of the agent's key")
	samples = flag.Int("samples", 0, "stop after so many acknowledged samples")
)

type agent struct {
	runID          string
	jwt            string
	nextSeq        uint64
	unacknowledged []*wire.Sample // in order of their numbers
	acknowledged   int            // by this process
	interval       time.Duration
	failures       int
}

func main() {
	flag.Parse()
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	a := &agent{runID: hex.EncodeToString(id), nextSeq: 1, interval: 30 * time.Second}
	for {
		done, err := a.connect()
		if done {
			return
		}
		if err != nil {
			wait := a.after(err)
			log.Printf("%v: again in %v", err, wait)
			time.Sleep(wait)
		}
	}
}

// connect registers if it has no JWT, and then serves one heartbeat stream.
func (a *agent) connect() (done bool, err error) {
	transport, err := transport()
	if err != nil {
		log.Fatal(err)
	}
	connection, err := grpc.NewClient(*address, grpc.WithTransportCredentials(transport))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := wire.NewIngestServiceClient(connection)
	if a.jwt == "" {
		if a.jwt, err = register(client); err != nil {
			return false, err
		}
	}
	return a.heartbeat(client)
}

func register(client wire.IngestServiceClient) (string, error) {
	request := &wire.RegisterRequest{EnrolmentToken: *token, Host: facts(), Agent: about()}
	for {
		stream, err := client.Register(context.Background(), request)
		if err != nil {
			return "", err
		}
		// While the registration is pending, the decision arrives on the same stream.
		for {
			response, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return "", err
			}
			log.Printf("agent %s: %s %s", response.AgentId, response.Status, response.Message)
			if response.Credential != nil {
				return response.Credential.Jwt, nil
			}
		}
		time.Sleep(time.Hour) // Rejected or revoked: only a person can change that.
	}
}

// heartbeat returns true when the agent has done what it was asked to.
func (a *agent) heartbeat(client wire.IngestServiceClient) (done bool, err error) {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(
		context.Background(), "authorization", "Bearer "+a.jwt))
	defer cancel()
	stream, err := client.Heartbeat(ctx)
	if err != nil {
		return false, err
	}
	hello := &wire.Hello{Agent: about(), Host: facts(), RunId: a.runID, SentAt: timestamppb.Now()}
	if err := stream.Send(&wire.HeartbeatRequest{Message: &wire.HeartbeatRequest_Hello{Hello: hello}}); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	responses, failed := make(chan *wire.HeartbeatResponse), make(chan error, 1)
	go receive(ctx, stream, responses, failed)
	var unsent []*wire.Sample
	tick := time.NewTimer(math.MaxInt64) // Begins with Welcome.
	for {
		select {
		case err := <-failed:
			return false, err
		case <-tick.C:
			tick.Reset(a.interval)
			sample := &wire.Sample{Seq: a.nextSeq, SampledAt: timestamppb.Now(), Vitals: vitals()}
			a.nextSeq++
			a.unacknowledged = append(a.unacknowledged, sample)
			unsent = append(unsent, sample)
			count := min(len(unsent), 500)
			report := &wire.Report{Samples: unsent[:count]}
			unsent = unsent[count:]
			// io.EOF means that the stream has ended; the other half says why.
			if err := stream.Send(&wire.HeartbeatRequest{Message: &wire.HeartbeatRequest_Report{Report: report}}); err != nil && !errors.Is(err, io.EOF) {
				return false, err
			}
		case response := <-responses:
			switch message := response.Message.(type) {
			case *wire.HeartbeatResponse_Welcome:
				a.failures = 0
				a.apply(message.Welcome.Settings)
				a.forget(message.Welcome.AckedSeq)
				a.nextSeq = max(a.nextSeq, message.Welcome.AckedSeq+1)
				unsent = append(unsent, a.unacknowledged...)
				tick.Reset(0)
			case *wire.HeartbeatResponse_Ack:
				a.acknowledged += a.forget(message.Ack.UpToSeq)
				for _, rejection := range message.Ack.Rejected {
					log.Printf("sample %d was rejected: %s", rejection.Seq, rejection.Reason)
				}
			case *wire.HeartbeatResponse_Credential:
				a.jwt = message.Credential.Jwt
			case *wire.HeartbeatResponse_Settings:
				a.apply(message.Settings)
			case *wire.HeartbeatResponse_Drain:
				// A real agent opens the new stream before it leaves the old one.
				time.Sleep(message.Drain.ReconnectAfter.AsDuration())
				return false, nil
			}
		}
		if *samples > 0 && a.acknowledged >= *samples {
			goodbye := &wire.Goodbye{Reason: "done"}
			_ = stream.Send(&wire.HeartbeatRequest{Message: &wire.HeartbeatRequest_Goodbye{Goodbye: goodbye}})
			<-failed // Until the service has ended the stream.
			return true, nil
		}
	}
}

func receive(ctx context.Context, stream wire.IngestService_HeartbeatClient, responses chan<- *wire.HeartbeatResponse, failed chan<- error) {
	for {
		response, err := stream.Recv()
		if err != nil {
			failed <- err
			return
		}
		select {
		case responses <- response:
		case <-ctx.Done():
			return
		}
	}
}

func (a *agent) apply(settings *wire.Settings) {
	if interval := settings.GetHeartbeatInterval().AsDuration(); interval > 0 {
		a.interval = interval
	}
}

func (a *agent) forget(upTo uint64) (count int) {
	for len(a.unacknowledged) > 0 && a.unacknowledged[0].Seq <= upTo {
		a.unacknowledged = a.unacknowledged[1:]
		count++
	}
	return count
}

// after says what to forget after a refusal, and how long to wait.
func (a *agent) after(err error) time.Duration {
	refused := status.Convert(err)
	switch refused.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		a.jwt = "" // Register again over the same key.
	case codes.NotFound:
		a.jwt, a.nextSeq, a.unacknowledged = "", 1, nil
	}
	for _, detail := range refused.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			log.Printf("refused: %s (%s)", detail.Reason, detail.Domain)
		case *errdetails.RetryInfo:
			return time.Duration(float64(detail.RetryDelay.AsDuration()) * (1 + 0.1*mathrand.Float64()))
		}
	}
	bound := min(120, math.Pow(1.6, float64(a.failures)))
	a.failures++
	return time.Duration(bound * mathrand.Float64() * float64(time.Second))
}

// transport is TLS with the key that is this agent's identity. The key is made once.
func transport() (credentials.TransportCredentials, error) {
	keyFile, certificateFile := filepath.Join(*state, "agent.key"), filepath.Join(*state, "agent.crt")
	if _, err := os.Stat(certificateFile); err != nil {
		if err := makeIdentity(keyFile, certificateFile); err != nil {
			return nil, err
		}
	}
	pair, err := tls.LoadX509KeyPair(certificateFile, keyFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	text, err := os.ReadFile(*ca)
	if err != nil || !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("no certificate in %q: %w", *ca, err)
	}
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}), nil
}

func makeIdentity(keyFile, certificateFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(100, 0, 0)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*state, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(certificateFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600)
}

func about() *wire.AgentInfo {
	return &wire.AgentInfo{Version: "example-go"}
}

func facts() *wire.HostFacts {
	name, _ := os.Hostname()
	return &wire.HostFacts{
		Hostname:  name,
		Os:        "linux",
		MachineId: text("/etc/machine-id"),
		BootId:    text("/proc/sys/kernel/random/boot_id"),
	}
}

// vitals measures what fits a few lines; docs/protocol.md lists the rest.
func vitals() *wire.Vitals {
	vitals := &wire.Vitals{}
	_, _ = fmt.Sscan(text("/proc/loadavg"), &vitals.Load_1M, &vitals.Load_5M, &vitals.Load_15M)
	var uptime float64
	_, _ = fmt.Sscan(text("/proc/uptime"), &uptime)
	vitals.UptimeSeconds = uint64(uptime)
	memory := map[string]uint64{}
	for _, line := range strings.Split(text("/proc/meminfo"), "\n") {
		var name string
		var kibibytes uint64
		if _, err := fmt.Sscan(line, &name, &kibibytes); err == nil {
			memory[name] = kibibytes * 1024
		}
	}
	vitals.MemoryTotalBytes = memory["MemTotal:"]
	vitals.MemoryUsedBytes = memory["MemTotal:"] - memory["MemAvailable:"]
	vitals.SwapTotalBytes = memory["SwapTotal:"]
	vitals.SwapUsedBytes = memory["SwapTotal:"] - memory["SwapFree:"]
	return vitals
}

func text(path string) string {
	bytes, _ := os.ReadFile(path)
	return strings.TrimSpace(string(bytes))
}
