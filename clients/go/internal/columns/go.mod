module github.com/weir-dev/weir/clients/go/internal/columns

go 1.26.0

require (
	github.com/DataDog/agent-payload/v5 v5.0.215
	github.com/weir-dev/weir/clients/go v0.1.0
	google.golang.org/protobuf v1.36.11
)

replace github.com/weir-dev/weir/clients/go => ../..
