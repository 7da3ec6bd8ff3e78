// The module directive is that of the module which this one replaces.
module github.com/DataDog/datadog-go/v5

go 1.22

require (
	github.com/golang/mock v1.6.0
	github.com/weir-dev/weir/clients/go v0.1.0
	github.com/weir-dev/weir/clients/go/statsd/mocks v0.1.0
)

replace github.com/weir-dev/weir/clients/go => ..

replace github.com/weir-dev/weir/clients/go/statsd/mocks => ../statsd/mocks
