module github.com/weir-dev/weir/clients/go/statsd/mocks

go 1.22

require (
	github.com/golang/mock v1.6.0
	github.com/weir-dev/weir/clients/go v0.1.0
)

replace github.com/weir-dev/weir/clients/go => ../..
