package catalog_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
)

// TestNewMemberIsAskedAtOnce loads from a worker that comes while the others' files can't be had, without waiting for
// the next attempt.
func TestNewMemberIsAskedAtOnce(t *testing.T) {
	for name, slow := range map[string]time.Duration{"waiting": 0, "loading": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, catalog.Options{Loaders: 1, LoadTimeout: time.Minute})
				var loads atomic.Int64
				s.override = func(ctx context.Context, rec *worker.ModelRecord) (*catalog.Text, error) {
					if loads.Add(1); rec.InstanceID == 7 {
						return s.load(ctx, rec)
					}
					time.Sleep(slow)
					return nil, errors.New("no such file")
				}
				for id := range uint64(3) {
					s.up("m", id+1, card("m", nil))
				}
				// Five attempts or so have failed, and the wait is long; or the first is under way.
				time.Sleep(20*time.Second - slow/2)
				s.want("m", notReady)
				before := loads.Load()
				s.up("m", 7, card("m", nil))
				time.Sleep(slow + time.Millisecond)
				s.want("m", ok)
				if n := loads.Load() - before; n != 1 {
					t.Errorf("%d loads for it", n)
				}
			})
		})
	}
}
