package native_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/portico-llm/portico/internal/native"
)

// imageFile reads a golden image.
func imageFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../tests/golden/images/files", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// identityValues leaves bytes what they are.
func identityValues() []byte {
	var out []byte
	for range 3 {
		for v := range 256 {
			out = append(out, byte(v))
		}
	}
	return out
}

// TestImageVectorsChangeNothing: vector code makes the same bytes as code without: libjpeg's own upsampling and colours,
// and plain loops. Sizes are random, and from so small to so large that every path is taken.
func TestImageVectorsChangeNothing(t *testing.T) {
	w, err := native.NewImageWorker()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	sizes := func() (int, int) { return 1 + random.IntN(400), 1 + random.IntN(400) }
	for _, name := range []string{"q422.jpg", "q444_progressive.jpg", "exif6_420.jpg", "wide.jpg", "gray.jpg", "tall.png", "rgba.png"} {
		file := imageFile(t, name)
		for i := range 25 {
			width, height := sizes()
			rule, filter := native.ImageRule(i%3), native.ImageFilter(1+random.IntN(5))
			step := native.ImageStep{Filter: filter, Rule: rule, Width: width, Height: height, Layout: native.Interleaved}
			t.Run(fmt.Sprintf("%s/%d x %d, rule %d, filter %d", name, width, height, rule, filter), func(t *testing.T) {
				compareNarrow(t, w, file, step, 3*width*height)
			})
		}
		group := 28 * (1 + random.IntN(4))
		step := native.ImageStep{
			Filter: native.Bicubic, Width: 2 * group, Height: group, Layout: native.Patches, Side: 14, Merge: 2, Frames: 2, Element: 1,
		}
		compareNarrow(t, w, file, step, 2*group*group*6)
	}
}

func compareNarrow(t *testing.T, w *native.ImageWorker, file []byte, step native.ImageStep, size int) {
	t.Helper()
	job := native.ImageJob{MaxPixels: 1 << 24, Steps: []native.ImageStep{step}, Values: identityValues()}
	wide, narrow := make([]byte, size+1)[1:], make([]byte, size) // one of the two isn't aligned
	if _, err := w.Run(file, &job, wide); err != nil {
		t.Fatal(err)
	}
	job.Narrow = true
	if _, err := w.Run(file, &job, narrow); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(wide, narrow) {
		t.Error("the two differ")
	}
}

// TestImageDamagedJPEG: of damaged files, too, our planes become what libjpeg's own rows are, or both are refused alike:
// what stands in for missing samples is the same, however far a file has been read.
func TestImageDamagedJPEG(t *testing.T) {
	w, err := native.NewImageWorker()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	decoded := 0
	for _, name := range []string{"q422.jpg", "q444_progressive.jpg", "exif6_420.jpg"} {
		whole := imageFile(t, name)
		for range 150 {
			file := bytes.Clone(whole)
			for range 1 + random.IntN(3) {
				file[2+random.IntN(len(file)-2)] = byte(random.IntN(256))
			}
			h, err := w.Header(file, 1<<18)
			if err != nil {
				continue
			}
			step := native.ImageStep{Filter: native.Bicubic, Width: h.Width, Height: h.Height, Layout: native.Interleaved}
			var outs [2][]byte
			var errs [2]error
			for i := range outs {
				job := native.ImageJob{MaxPixels: 1 << 18, Narrow: i == 1, Steps: []native.ImageStep{step}}
				outs[i] = make([]byte, 3*h.Width*h.Height)
				_, errs[i] = w.Run(file, &job, outs[i])
			}
			if (errs[0] == nil) != (errs[1] == nil) {
				t.Fatalf("%s: %v, but %v by rows: %x", name, errs[0], errs[1], file)
			}
			if errs[0] == nil && !bytes.Equal(outs[0], outs[1]) {
				t.Fatalf("%s: other pixels than by rows: %x", name, file)
			}
			if errs[0] == nil {
				decoded++
			}
		}
	}
	if decoded == 0 {
		t.Error("every damaged file was refused")
	}
	t.Logf("%d damaged files had pixels", decoded)
}

// TestImagePatchSizes: patches of sizes without code of their own, in more than one element size, are the same pixels in
// another order.
func TestImagePatchSizes(t *testing.T) {
	w, err := native.NewImageWorker()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	file := imageFile(t, "rgb.png")
	wide := bytes.Repeat([]byte{0}, 1536) // each value and a zero
	for i, v := range identityValues() {
		wide[2*i] = v
	}
	for _, side := range []int{7, 14, 16, 20} {
		for _, element := range []int{1, 2} {
			const merge, frames = 2, 3
			width, height := side*merge*4, side*merge*3
			flat, patches := make([]byte, 3*width*height), make([]byte, 3*width*height*frames*element)
			step := native.ImageStep{Filter: native.Bicubic, Width: width, Height: height, Layout: native.Interleaved}
			if _, err := w.Run(file, &native.ImageJob{MaxPixels: 1 << 24, Steps: []native.ImageStep{step}}, flat); err != nil {
				t.Fatal(err)
			}
			step.Layout, step.Side, step.Merge, step.Frames, step.Element = native.Patches, side, merge, frames, element
			job := native.ImageJob{MaxPixels: 1 << 24, Steps: []native.ImageStep{step}, Values: wide}
			if element == 1 {
				job.Values = identityValues()
			}
			if _, err := w.Run(file, &job, patches); err != nil {
				t.Fatal(err)
			}
			if want := patchify(flat, width, height, side, merge, frames, element); !bytes.Equal(want, patches) {
				t.Errorf("side %d, element %d: other patches", side, element)
			}
		}
	}
}

// patchify is the order of patches, written down plainly.
func patchify(flat []byte, width, height, side, merge, frames, element int) (out []byte) {
	group := side * merge
	for gy := range height / group {
		for gx := range width / group {
			for p := range merge * merge {
				y0, x0 := gy*group+p/merge*side, gx*group+p%merge*side
				for c := range 3 {
					for range frames {
						for i := range side * side {
							out = append(out, flat[((y0+i/side)*width+x0+i%side)*3+c])
							out = append(out, make([]byte, element-1)...)
						}
					}
				}
			}
		}
	}
	return out
}

// TestImageCanvas: what hangs over a canvas is cut off, what doesn't reach its edge has black around it, and tiles come
// one after the other.
func TestImageCanvas(t *testing.T) {
	w, err := native.NewImageWorker()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	file := imageFile(t, "rgb.png")
	const width, height = 60, 40
	flat := make([]byte, 3*width*height)
	step := native.ImageStep{Filter: native.Bicubic, Width: width, Height: height, Layout: native.Interleaved}
	if _, err := w.Run(file, &native.ImageJob{MaxPixels: 1 << 24, Steps: []native.ImageStep{step}}, flat); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][6]int{ // canvas, offset, tile
		{60, 40, 0, 0, 60, 40}, {60, 40, 0, 0, 20, 10}, {40, 30, -10, -5, 40, 30}, {100, 80, 20, 20, 50, 40},
		{80, 20, 10, -10, 40, 20}, {30, 60, -15, 10, 10, 20}, {60, 40, -70, 0, 60, 40},
	} {
		step := step
		step.Layout, step.Element = native.Tiles, 1
		step.CanvasWidth, step.CanvasHeight, step.Left, step.Top, step.TileWidth, step.TileHeight = c[0], c[1], c[2], c[3], c[4], c[5]
		got := bytes.Repeat([]byte{0xa5}, 3*c[0]*c[1])
		if _, err := w.Run(file, &native.ImageJob{MaxPixels: 1 << 24, Steps: []native.ImageStep{step}, Values: identityValues()}, got); err != nil {
			t.Fatal(err)
		}
		var want []byte
		for tile := range c[0] / c[4] * (c[1] / c[5]) {
			for i := range 3 * c[4] * c[5] {
				channel, y, x := i/(c[4]*c[5]), i/c[4]%c[5], i%c[4]
				y, x = y+tile/(c[0]/c[4])*c[5]-c[3], x+tile%(c[0]/c[4])*c[4]-c[2]
				v := byte(0)
				if y >= 0 && y < height && x >= 0 && x < width {
					v = flat[(y*width+x)*3+channel]
				}
				want = append(want, v)
			}
		}
		if !bytes.Equal(want, got) {
			t.Errorf("canvas %v: other pixels", c)
		}
	}
}

// TestImageMisuse: steps that don't fit the buffer, the tables or each other are refused before they write anything.
func TestImageMisuse(t *testing.T) {
	w, err := native.NewImageWorker()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	file := imageFile(t, "tiny.png")
	good := native.ImageStep{
		Filter: native.Bicubic, Width: 56, Height: 28, Layout: native.Patches, Side: 14, Merge: 2, Frames: 2, Element: 1,
	}
	const size = 56 * 28 * 6
	for name, change := range map[string]func(s *native.ImageStep, j *native.ImageJob){
		"offset":    func(s *native.ImageStep, _ *native.ImageJob) { s.Offset = 1 },
		"far away":  func(s *native.ImageStep, _ *native.ImageJob) { s.Offset = 1 << 62 },
		"size":      func(s *native.ImageStep, _ *native.ImageJob) { s.Width = 84 },
		"no size":   func(s *native.ImageStep, _ *native.ImageJob) { s.Height = 0 },
		"negative":  func(s *native.ImageStep, _ *native.ImageJob) { s.Height = -28 },
		"huge":      func(s *native.ImageStep, _ *native.ImageJob) { s.Width, s.Height = 1<<40, 1<<40 },
		"not whole": func(s *native.ImageStep, _ *native.ImageJob) { s.Width = 42 },
		"side":      func(s *native.ImageStep, _ *native.ImageJob) { s.Side = 0 },
		"element":   func(s *native.ImageStep, _ *native.ImageJob) { s.Element = 2 },
		"filter":    func(s *native.ImageStep, _ *native.ImageJob) { s.Filter = 0 },
		"rule":      func(s *native.ImageStep, _ *native.ImageJob) { s.Rule = 3 },
		"layout":    func(s *native.ImageStep, _ *native.ImageJob) { s.Layout = 3 },
		"tables":    func(_ *native.ImageStep, j *native.ImageJob) { j.Values = j.Values[1:] },
		"tile": func(s *native.ImageStep, _ *native.ImageJob) {
			s.Layout, s.CanvasWidth, s.CanvasHeight, s.TileWidth, s.TileHeight = native.Tiles, 56, 28, 50, 28
		},
	} {
		t.Run(name, func(t *testing.T) {
			step, job := good, native.ImageJob{MaxPixels: 1 << 20, Values: identityValues()}
			change(&step, &job)
			job.Steps = []native.ImageStep{step}
			dst := bytes.Repeat([]byte{0xa5}, size)
			_, err := w.Run(file, &job, dst)
			if e, ok := errors.AsType[*native.ImageError](err); !ok || e.Failure != native.ImageMisuse {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := w.Run(file, &native.ImageJob{MaxPixels: 1 << 20, Values: identityValues(), Steps: []native.ImageStep{good}}, make([]byte, size)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestImageMemory: what decoding takes is given back, whatever became of the images.
func TestImageMemory(t *testing.T) {
	file, broken := imageFile(t, "wide.jpg"), imageFile(t, "q444_progressive.jpg")
	broken = broken[:len(broken)/2]
	round := func() {
		w, err := native.NewImageWorker()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		step := native.ImageStep{Filter: native.Bicubic, Width: 100, Height: 100, Layout: native.Interleaved}
		job := native.ImageJob{MaxPixels: 1 << 24, Steps: []native.ImageStep{step}}
		for range 20 {
			if _, err := w.Run(file, &job, make([]byte, 30000)); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Run(broken, &job, make([]byte, 30000)); err == nil {
				t.Fatal("half a file is whole")
			}
		}
	}
	round()
	before := native.HeapInUse()
	for range 20 {
		round()
	}
	if after := native.HeapInUse(); after > before+1<<20 {
		t.Errorf("%d bytes in use, %d before", after, before)
	}
}
