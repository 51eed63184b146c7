package dispatch

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/portico-llm/portico/api/worker"
)

// TestQuarantineIsToldOnce has many streams of one worker break off: the log tells once for each time it is left aside,
// and the last of them counts for how long.
func TestQuarantineIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		d := New(Options{QuarantineFor: 5 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))})
		in := newInstance(&worker.Instance{InstanceID: 1}, &load{})
		check := func(told int) {
			t.Helper()
			if n := strings.Count(log.String(), "worker left aside"); n != told {
				t.Errorf("told %d times, want %d", n, told)
			}
			if n := testutil.ToFloat64(d.metrics.quarantines); n != float64(told) {
				t.Errorf("counted %v, want %d", n, told)
			}
		}
		time.Sleep(time.Second)
		for range 100 {
			d.quarantine(in, errors.New("lost"))
		}
		check(1)
		time.Sleep(4 * time.Second)
		d.quarantine(in, errors.New("lost"))
		check(1)
		time.Sleep(4 * time.Second)
		if !in.aside(&in.quarantined, d.now()) {
			t.Error("no longer aside")
		}
		time.Sleep(2 * time.Second)
		d.quarantine(in, errors.New("lost"))
		check(2)
	})
}
