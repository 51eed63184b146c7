package decode_test

import (
	"bytes"
	"compress/gzip"
	"compress/lzw"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/native"
)

// bomb reads a file of very many equal pixels.
func bomb(t testing.TB, name string) []byte {
	t.Helper()
	packed, err := os.Open(filepath.Join(goldens, name))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
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
	if testing.Short() {
		t.Skip("takes some seconds")
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

// TestMemory: a file that would take more than a gigabyte is refused before it does: with all coefficients of a progressive
// JPEG, or all pixels of an interlaced PNG, in memory.
func TestMemory(t *testing.T) {
	const side = 13376 // nearly as many pixels as are allowed
	size := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, side), side)
	jpeg := golden(t, "q444_progressive.jpg").Data
	frame := bytes.Index(jpeg, []byte{0xff, 0xc2})
	jpeg = append(bytes.Clone(jpeg), 0xff, 0xd9)
	copy(jpeg[frame+5:], size)

	header := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte("IHDR"), side), side)
	header = append(header, 16, 6, 0, 0, 1) // 16 bits, RGBA, interlaced
	png := append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0d"), header...)
	png = binary.BigEndian.AppendUint32(png, crc32.ChecksumIEEE(header))
	png = append(png, 0, 0, 0, 1, 'I', 'D', 'A', 'T', 0x78)

	pool := decode.New(decode.Options{})
	defer pool.Close()
	for name, data := range map[string][]byte{"JPEG": jpeg, "PNG": png} {
		file := multimodal.File{Path: part, Data: data}
		h, err := pool.Header(file)
		if err != nil || h.Width != side || h.Height != side {
			t.Fatalf("%s: got %+v, %v", name, h, err)
		}
		job := &native.ImageJob{Steps: []native.ImageStep{{
			Filter: native.Bicubic, Width: 40, Height: 40, Layout: native.Interleaved,
		}}}
		err = pool.Run(t.Context(), file, h, job, make([]byte, 3*40*40))
		if f := fault.From(err); err == nil || f.Kind != fault.BadRequest || !strings.Contains(f.Message, "takes too much memory") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// gifBomb returns a GIF of a black square.
func gifBomb(side int) []byte {
	size := binary.LittleEndian.AppendUint16(nil, uint16(side))
	size = append(size, size...)
	var packed, out bytes.Buffer
	w := lzw.NewWriter(&packed, lzw.LSB, 2)
	row := make([]byte, side)
	for range side {
		_, _ = w.Write(row) // a buffer doesn't fail
	}
	_ = w.Close()
	out.WriteString("GIF89a")
	out.Write(size)
	out.Write([]byte{0xf0, 0, 0, 0, 0, 0, 9, 9, 9, ',', 0, 0, 0, 0})
	out.Write(size)
	out.Write([]byte{0, 2})
	for packed.Len() > 0 {
		block := packed.Next(255)
		out.WriteByte(byte(len(block)))
		out.Write(block)
	}
	out.Write([]byte{0, ';'})
	return out.Bytes()
}

func decodeBombs(t *testing.T) {
	pool := decode.New(decode.Options{Workers: 4})
	defer pool.Close()
	group := lifecycle.New(t.Context())
	whole := bomb(t, "bomb-interlaced.png.gz")
	files := [][]byte{bomb(t, "bomb.png.gz"), whole, whole, gifBomb(12000)}
	for _, name := range []string{"bomb.jpg.gz", "bomb.webp.gz", "bomb-lossy.webp.gz"} { // the first is progressive
		files = append(files, bomb(t, name))
	}
	for _, data := range files {
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
