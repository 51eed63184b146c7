package pipeline

import (
	"errors"
	"slices"
	"testing"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// TestPlaneDownExcludesNobody keeps workers that were only out of reach for a request that comes by again.
func TestPlaneDownExcludesNobody(t *testing.T) {
	m := &move{full: true}
	m.failed(1, fault.Lost(errors.Join(router.ErrPlaneDown, errors.New("no server")), "The message server can't be reached"))
	m.failed(2, fault.Lost(errors.New("gone"), "The worker can't be reached"))
	if !slices.Equal(m.excluded, []uint64{2}) || m.full || m.refused != 2 {
		t.Errorf("%+v", m)
	}
}
