// Package mock_statsd holds gomock doubles of the interfaces of package statsd.
//
// It is a module of its own, so that only tests which use it depend on gomock.
package mock_statsd

//go:generate go run github.com/golang/mock/mockgen@v1.6.0 -source=../interface.go -destination=statsd.go -package=mock_statsd
