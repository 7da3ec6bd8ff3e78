// Chartcheck reads what `helm template` wrote and decodes each object strictly into the types of the Kubernetes API:
// a field that the API does not know, or a value of another type, is an error.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

func main() {
	kinds, err := check(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chartcheck:", err)
		os.Exit(1)
	}
	for _, kind := range kinds {
		fmt.Println(kind)
	}
}

// check returns the kind and name of each object, in order.
func check(from io.Reader) ([]string, error) {
	decode, err := decoder()
	if err != nil {
		return nil, err
	}
	var kinds []string
	documents := yaml.NewYAMLReader(newReader(from))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return kinds, nil
		}
		if err != nil {
			return nil, err
		}
		kind, err := object(document, decode)
		if err != nil {
			return nil, err
		}
		if kind != "" {
			kinds = append(kinds, kind)
		}
	}
}

type decodeFunc func([]byte) error

func decoder() (decodeFunc, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	return func(document []byte) error {
		_, _, err := strict.Decode(document, nil, nil)
		return err
	}, nil
}

// object decodes one document; what has no content is none.
func object(document []byte, decode decodeFunc) (string, error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := sigsyaml.Unmarshal(document, &head); err != nil {
		return "", err
	}
	if head.Kind == "" {
		if rest := bytes.TrimSpace(withoutComments(document)); len(rest) > 0 {
			return "", fmt.Errorf("an object without a kind: %s", rest)
		}
		return "", nil
	}
	name := head.Kind + "/" + head.Metadata.Name
	var err error
	switch head.APIVersion {
	case "monitoring.coreos.com/v1":
		err = monitoring(head.Kind, document)
	default:
		err = decode(document)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return name, nil
}

func withoutComments(document []byte) []byte {
	var kept [][]byte
	for _, line := range bytes.Split(document, []byte("\n")) {
		if text := bytes.TrimSpace(line); !bytes.HasPrefix(text, []byte("#")) && !bytes.Equal(text, []byte("---")) {
			kept = append(kept, line)
		}
	}
	return bytes.Join(kept, []byte("\n"))
}
