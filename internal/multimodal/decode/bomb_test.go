package decode_test

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"hash/crc32"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/native"
)

// bombPNG returns an RGB PNG of so many equal pixels a side, of which little is transferred.
func bombPNG(t testing.TB, side int, interlaced bool) []byte {
	t.Helper()
	out := []byte("\x89PNG\r\n\x1a\n")
	chunk := func(name string, data []byte) {
		out = binary.BigEndian.AppendUint32(out, uint32(len(data)))
		body := append([]byte(name), data...)
		out = binary.BigEndian.AppendUint32(append(out, body...), crc32.ChecksumIEEE(body))
	}
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(side)), uint32(side))
	flag := byte(0)
	if interlaced {
		flag = 1
	}
	chunk("IHDR", append(head, 8, 2, 0, 0, flag))
	var pixels bytes.Buffer
	z, err := zlib.NewWriterLevel(&pixels, zlib.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	row := make([]byte, 1+3*side)
	write := func(width, rows int) {
		for range rows {
			if _, err := z.Write(row[:1+3*width]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if interlaced { // seven passes
		for _, p := range [][4]int{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}} {
			write((side-p[0]+p[2]-1)/p[2], (side-p[1]+p[3]-1)/p[3])
		}
	} else {
		write(side, side)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	chunk("IDAT", pixels.Bytes())
	chunk("IEND", nil)
	return out
}

// bombs is the name of the variable that makes a test process decode bombs and nothing else.
const bombs = "PORTICO_TEST_BOMBS"

// TestBombs: images of 144 million pixels, in less than a megabyte, cost at most a gigabyte for some seconds, whether
// they come row by row or as a whole and however many come at a time; and small images don't wait for them.
func TestBombs(t *testing.T) {
	if os.Getenv(bombs) != "" {
		decodeBombs(t)
		return
	}
	if testing.Short() || raceEnabled {
		t.Skip("takes too long with the race detector")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBombs$", "-test.v")
	cmd.Env = append(os.Environ(), bombs+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	t.Logf("peak memory %d MB\n%s", peak>>20, out)
	if peak > 1<<30 {
		t.Errorf("peak memory %d MB", peak>>20)
	}
}

func decodeBombs(t *testing.T) {
	pool := decode.New(decode.Options{Workers: 4})
	defer pool.Close()
	const side = 12_000
	group := lifecycle.New(t.Context())
	rows, whole := bombPNG(t, side, false), bombPNG(t, side, true)
	for _, data := range [][]byte{rows, whole, whole} {
		file := multimodal.File{Path: part, Data: data}
		h, err := pool.Header(file)
		if err != nil {
			t.Fatal(err)
		}
		job := &native.ImageJob{Steps: []native.ImageStep{{
			Filter: native.Bicubic, Width: 400, Height: 400, Layout: native.Interleaved,
		}}}
		group.Go("bomb", func(ctx context.Context) error { return pool.Run(ctx, file, h, job, make([]byte, 3*400*400)) })
	}
	// While the large ones run, for some seconds.
	small, longest := golden(t, "tiny.png"), time.Duration(0)
	for range 40 {
		begin := time.Now()
		if _, err := pool.Decode(t.Context(), small, nil); err != nil {
			t.Error(err)
		}
		longest = max(longest, time.Since(begin))
		time.Sleep(10 * time.Millisecond)
	}
	begin := time.Now()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("a small image took %v at most, the large ones %v more", longest, time.Since(begin))
	if longest > time.Since(begin) {
		t.Error("small images waited for large ones")
	}
}
