package testkit

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"os"
	"testing"
)

// Records reads the JSON values of a gzipped file, one after the other. A file that breaks off fails the test.
func Records[T any](tb testing.TB, path string) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		tb.Helper()
		f, err := os.Open(path)
		if err != nil {
			tb.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			tb.Fatalf("%s: %v", path, err)
		}
		for dec := json.NewDecoder(z); ; {
			v := new(T)
			switch err := dec.Decode(v); {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				tb.Fatalf("%s: %v", path, err)
			}
			if !yield(v) {
				return
			}
		}
	}
}
