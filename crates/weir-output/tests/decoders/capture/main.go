// Reads a capture with the Datadog Agent's own messages and prints what it holds as JSON: a line for each packet, and one for the
// state at the end. It knows nothing of weir.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"

	pb "github.com/DataDog/datadog-agent/pkg/proto/pbgo/core"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"
)

var header = []byte{0xD4, 0x74, 0xD0, 0x60, 0xF3, 0xFF, 0x00, 0x00}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path string) error {
	contents, err := unpacked(path)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(contents, header) {
		return fmt.Errorf("header is % x", contents[:min(8, len(contents))])
	}
	out := json.NewEncoder(os.Stdout)
	rest := contents[len(header):]
	for {
		size := binary.LittleEndian.Uint32(rest)
		rest = rest[4:]
		if size == 0 {
			break
		}
		var message pb.UnixDogstatsdMsg
		if err := proto.Unmarshal(rest[:size], &message); err != nil {
			return err
		}
		rest = rest[size:]
		line := map[string]any{
			"timestamp":     message.Timestamp,
			"payload":       string(message.Payload[:message.PayloadSize]),
			"pid":           message.Pid,
			"ancillarySize": message.AncillarySize,
			"ancillary":     len(message.Ancillary),
		}
		if err := out.Encode(line); err != nil {
			return err
		}
	}
	// As the Agent does it: from the end.
	size := int(binary.LittleEndian.Uint32(contents[len(contents)-4:]))
	var state pb.TaggerState
	if err := proto.Unmarshal(contents[len(contents)-size-4:len(contents)-4], &state); err != nil {
		return err
	}
	if size != len(rest)-4 {
		return fmt.Errorf("the state has %d bytes and says %d", len(rest)-4, size)
	}
	return out.Encode(map[string]any{"pids": len(state.PidMap), "entities": len(state.State)})
}

func unpacked(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	reader, err := zstd.NewReader(file)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(reader)
}
