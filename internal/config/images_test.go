package config_test

import (
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/config"
)

// TestCleanupAfter: what isn't a positive number of seconds is the default, and says so.
func TestCleanupAfter(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"60": time.Minute, "0.5": 500 * time.Millisecond, " 2 ": 2 * time.Second, "1e3": 1000 * time.Second,
		"": 0, "0": 0, "-1": 0, "x": 0, "NaN": 0, "inf": 0, "60s": 0, "1e300": 0,
	} {
		m := config.Images{CleanupTimeout: text}
		got, ok := m.CleanupAfter()
		if ok != (want > 0) || ok && got != want || !ok && got != time.Minute {
			t.Errorf("%q: got %v, %v", text, got, ok)
		}
	}
}
