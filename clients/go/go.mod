module github.com/weir-dev/weir/clients/go

go 1.22
