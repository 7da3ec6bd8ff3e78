// Package mock_statsd has the gomock doubles of package statsd.
package mock_statsd

import (
	"github.com/golang/mock/gomock"
	weir "github.com/weir-dev/weir/clients/go/statsd/mocks"
)

// The types of package github.com/weir-dev/weir/clients/go/statsd/mocks.
type (
	MockClientDirectInterface             = weir.MockClientDirectInterface
	MockClientDirectInterfaceMockRecorder = weir.MockClientDirectInterfaceMockRecorder
	MockClientInterface                   = weir.MockClientInterface
	MockClientInterfaceMockRecorder       = weir.MockClientInterfaceMockRecorder
)

// NewMockClientDirectInterface calls [weir.NewMockClientDirectInterface].
func NewMockClientDirectInterface(ctrl *gomock.Controller) *MockClientDirectInterface {
	return weir.NewMockClientDirectInterface(ctrl)
}

// NewMockClientInterface calls [weir.NewMockClientInterface].
func NewMockClientInterface(ctrl *gomock.Controller) *MockClientInterface {
	return weir.NewMockClientInterface(ctrl)
}
