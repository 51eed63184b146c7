package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// flatErrors are the checks that need OpenAI's nested error object.
var flatErrors = map[string]bool{"error_fields": true}

func runClients(t *testing.T, url string) {
	url = linted(t, url)
	setup := exec.Command(filepath.Join(tools.Root, "tests", "clients", "setup.sh"))
	setup.Stderr = os.Stderr
	out, err := setup.Output()
	if err != nil {
		t.Fatalf("install clients: %v", err)
	}
	dir := strings.TrimSpace(string(out))
	scripts := filepath.Join(tools.Root, "tests", "clients")
	t.Run("python", func(t *testing.T) {
		runClient(t, dir, filepath.Join(dir, "python", "bin", "python"), filepath.Join(scripts, "python", "check.py"), url, model)
	})
	t.Run("node", func(t *testing.T) {
		node, err := exec.LookPath("node")
		if err != nil {
			t.Skip("node is not installed")
		}
		runClient(t, filepath.Join(dir, "node"), node, filepath.Join(scripts, "node", "check.mjs"), url, model)
	})
}

// runClient runs a script that prints a JSON line per check.
func runClient(t *testing.T, dir string, args ...string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	checks := 0
	for line := range strings.Lines(string(out)) {
		var check struct {
			Check, Detail string
			OK            bool
		}
		if err := json.Unmarshal([]byte(line), &check); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		checks++
		t.Run(check.Check, func(t *testing.T) {
			if flatErrors[check.Check] {
				dynamoDiffers(t, "its errors are flat")
			}
			if !check.OK {
				t.Error(check.Detail)
			}
		})
	}
	if checks == 0 {
		t.Error("no checks ran")
	}
}
