package chattmpl_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain looks for goroutines left over. Renders that were given up go on until the engine is done with them, which
// the bombs among the tests take a while for.
func TestMain(m *testing.M) {
	code := m.Run()
	deadline := time.Now().Add(2 * time.Minute)
	err := goleak.Find()
	for err != nil && time.Now().Before(deadline) {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
