package main

import (
	"bufio"
	"fmt"
	"io"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	sigsyaml "sigs.k8s.io/yaml"
)

// monitoring decodes objects of the Prometheus operator, whose types are not the API's own.
func monitoring(kind string, document []byte) error {
	switch kind {
	case "ServiceMonitor":
		return sigsyaml.UnmarshalStrict(document, &monitoringv1.ServiceMonitor{})
	case "PodMonitor":
		return sigsyaml.UnmarshalStrict(document, &monitoringv1.PodMonitor{})
	case "PrometheusRule":
		return sigsyaml.UnmarshalStrict(document, &monitoringv1.PrometheusRule{})
	}
	return fmt.Errorf("no type is known for it")
}

func newReader(from io.Reader) *bufio.Reader {
	return bufio.NewReader(from)
}
