module github.com/weir-dev/weir/clients/go/internal/compat

go 1.26.0

require (
	github.com/DataDog/agent-payload/v5 v5.0.215
	github.com/DataDog/datadog-go/v5 v5.9.1
	github.com/weir-dev/weir/clients/go v0.1.0
	github.com/weir-dev/weir/clients/go/statsd/mocks v0.1.0
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/Microsoft/go-winio v0.5.0 // indirect
	github.com/golang/mock v1.6.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/weir-dev/weir/clients/go => ../..

replace github.com/weir-dev/weir/clients/go/statsd/mocks => ../../statsd/mocks
