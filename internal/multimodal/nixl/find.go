package nixl

import (
	"os"
	"path/filepath"
)

// fileName is what the library is called everywhere.
const fileName = "libnixl_capi.so"

// Find returns the paths at which the library may be, the likeliest first: in a Python environment, where its packages
// put it, and where systems have theirs. The last has no folder: the system's own search finds it, or not. python is the
// environment's folder; empty: only the usual ones are looked at.
func Find(python string) []string {
	roots := []string{python, "/opt/dynamo/venv", "/opt/venv", "/usr/local", "/usr"}
	var out []string
	for _, root := range roots {
		if root == "" {
			continue
		}
		for _, packages := range []string{"site-packages", "dist-packages"} {
			// The packages differ by the version of CUDA; the library doesn't use it for memory of the host.
			pattern := filepath.Join(root, "lib", "python3*", packages, ".nixl*.mesonpy.libs", fileName)
			found, err := filepath.Glob(pattern) // fails for patterns alone, which this isn't
			if err == nil {
				out = append(out, found...)
			}
		}
	}
	for _, dir := range []string{"/opt/nvidia/nvda_nixl/lib/x86_64-linux-gnu", "/opt/nvidia/nvda_nixl/lib64", "/usr/local/nixl/lib/x86_64-linux-gnu"} {
		path := filepath.Join(dir, fileName)
		if _, err := os.Stat(path); err == nil {
			out = append(out, path)
		}
	}
	return append(out, fileName)
}
