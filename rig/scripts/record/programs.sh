#!/usr/bin/env bash
# Sourced after common.sh: other people's programs whose cost is known.

# filled_up PROGRAM PERCENT: prints a statsd_exporter whose event costs 25 us, or a nats-server whose message costs 10 us, and PERCENT more, all of
# its threads together: it fills up what it has not used itself, as the practice target does. Its own time alone would be no known cost: it depends
# on how often it sleeps. A program that needs more than that by itself ends with an error: the first event of a metric takes about 20 us.
# Builds it in the folder `programs` names; a run that is resumed needs it there.
filled_up() {
  local source=$work/$1 out module version file package ns edit
  case $1 in
    statsd_exporter)
      module=github.com/prometheus/statsd_exporter version=v0.28.0 file=pkg/exporter/exporter.go package=exporter ns=25000
      edit='s/^\(\t*\)b\.handleEvent(event)$/&\n\1fillUp()/'
      ;;
    nats-server)
      module=github.com/nats-io/nats-server/v2 version=v2.10.22 file=server/client.go package=server ns=10000
      edit='s/^func (c \*client) processInboundMsg(msg \[\]byte) {$/&\n\tfillUp()/'
      ;;
    *)
      echo "record: $1: allowed are statsd_exporter and nats-server" >&2
      return 1
      ;;
  esac
  if [ ! -d "$source" ]; then
    cp -r "$(go mod download -json $module@$version | jq -r .Dir)" "$source"
    chmod -R u+w "$source"
    sed -i "$edit" "$source/$file"
    { echo "package $package"; cost; } >"$source/$(dirname $file)/cost.go"
  fi
  out=$(realpath -m "$programs/$1-$2")
  [ -x "$out" ] || (cd "$source" && go build -o "$out" -ldflags "-X $module/$(dirname $file).NsPerEvent=$((ns * (100 + $2) / 100))" .)
  echo "$out"
}

cost() {
  cat <<'GO'

import (
	"fmt"
	"strconv"
	"syscall"
	"unsafe"
)

// NsPerEvent is set by the linker.
var NsPerEvent string

var (
	perEvent, _ = strconv.ParseFloat(NsPerEvent, 64)
	began       int64
	handled     float64
	behind      int
	spent       uint64
)

// behindMax is a tenth of the events of a window: collecting garbage takes the time of some hundreds.
const behindMax = 1500

// cpuTime is that of all threads.
func cpuTime() int64 {
	const ofProcess = 2
	var time syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, ofProcess, uintptr(unsafe.Pointer(&time)), 0)
	return time.Nano()
}

// fillUp spends what the events may cost and have not cost yet.
func fillUp() {
	if handled == 0 {
		began = cpuTime()
	}
	handled++
	left := handled*perEvent - float64(cpuTime()-began)
	if behind++; left >= 0 {
		behind = 0
	} else if behind > behindMax {
		panic(fmt.Sprintf("%.0f events took %.1f ms more than %s ns each", handled, -left/1e6, NsPerEvent))
	}
	for float64(cpuTime()-began) < handled*perEvent {
		for i := 0; i < 300; i++ {
			spent = spent*6364136223846793005 + 1
		}
	}
}
GO
}
