// The OTLP receiver of the OpenTelemetry collector, over HTTP and gRPC. It prints each request as a line of JSON.
//
//	otlp-receiver 127.0.0.1:4318 127.0.0.1:4317
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func main() {
	ctx := context.Background()
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.HTTP.Endpoint = os.Args[1]
	config.GRPC.NetAddr.Endpoint = os.Args[2]
	printer, err := consumer.NewMetrics(func(_ context.Context, metrics pmetric.Metrics) error {
		text, err := (&pmetric.JSONMarshaler{}).MarshalMetrics(metrics)
		fmt.Println(string(text))
		return err
	})
	fail(err)
	receiver, err := factory.CreateMetrics(ctx, receivertest.NewNopSettings(), config, printer)
	fail(err)
	fail(receiver.Start(ctx, componenttest.NewNopHost()))
	select {}
}

func fail(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
