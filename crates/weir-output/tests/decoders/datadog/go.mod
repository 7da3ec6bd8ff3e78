module decoders/datadog

go 1.26.0

require (
	github.com/DataDog/agent-payload/v5 v5.0.215
	google.golang.org/protobuf v1.36.11
)

require github.com/gogo/protobuf v1.3.2 // indirect
