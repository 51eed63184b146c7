package process

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/item"
	"github.com/portico-llm/portico/internal/native"
)

// Backend says whose processor the engine runs; their results differ in single bits.
type Backend string

// The backends.
const (
	Torchvision Backend = "torchvision" // transformers with torchvision, as in vLLM
	Pillow      Backend = "pillow"      // transformers without it, Pillow from 13 on
	Pillow12    Backend = "pillow12"    // the same with Pillow up to 12
)

// Scale says what the pixel values are.
type Scale string

// The scales.
const (
	Bytes      Scale = "bytes"      // 0 to 255: the model normalises them on the device
	Normalized Scale = "normalized" // with the config's mean and standard deviation
)

// Settings are a model's choices. Empty fields have defaults by the model's architecture and the engine's version. The
// engine can't tell a wrong one: it answers with a wrong text.
type Settings struct {
	Engine  string           // version of vLLM, such as 0.31.0; empty: DefaultEngine
	Backend Backend          // empty: Torchvision
	Scale   Scale            // empty: by architecture and version
	DType   multimodal.DType // empty: uint8 for Bytes, else the model's
}

// DefaultEngine is the version of vLLM that comes with the version of Dynamo this server stands in for.
const DefaultEngine = "0.31.0"

// version reads the first two numbers of a version.
func version(text string) (major, minor int, err error) {
	parts := strings.SplitN(strings.TrimPrefix(text, "v"), ".", 3)
	if len(parts) >= 2 {
		major, err = strconv.Atoi(parts[0])
		if err == nil {
			minor, err = strconv.Atoi(parts[1])
		}
	}
	if err != nil || len(parts) < 2 {
		return 0, 0, fmt.Errorf("engine version %q isn't like 0.31.0", text)
	}
	return major, minor, nil
}

// deviceNormalized are the model types that vLLM feeds with bytes, and the minor version of 0.x from which on it does.
var deviceNormalized = []struct {
	since int
	types []string
}{
	{30, []string{"qwen2_vl", "qwen2_5_vl"}},
	{32, []string{"qwen3_vl", "qwen3_vl_moe", "mistral3"}},
}

// resolve fills in the defaults for a model, and refuses what isn't known.
func (s Settings) resolve(config *modelConfig) (Settings, item.Version, error) {
	if s.Engine == "" {
		s.Engine = DefaultEngine
	}
	major, minor, err := version(s.Engine)
	if err != nil {
		return s, 0, err
	}
	if s.Backend == "" {
		s.Backend = Torchvision
	}
	if s.Scale == "" {
		s.Scale = Normalized
		for _, d := range deviceNormalized {
			if (major > 0 || minor >= d.since) && slices.Contains(d.types, config.ModelType) && s.Backend == Torchvision {
				s.Scale = Bytes
			}
		}
	}
	if s.DType == "" {
		s.DType = modelDType(config.dtype())
		if s.Scale == Bytes {
			s.DType = multimodal.Uint8
		}
	}
	return s, item.VersionOf(major, minor), s.validate()
}

func (s Settings) validate() error {
	switch {
	case !slices.Contains([]Backend{Torchvision, Pillow, Pillow12}, s.Backend):
		return fmt.Errorf("image backend %q is none of torchvision, pillow, pillow12", s.Backend)
	case s.Scale != Bytes && s.Scale != Normalized:
		return fmt.Errorf("image scale %q is neither bytes nor normalized", s.Scale)
	case s.DType == multimodal.Int64 || s.DType.Size() == 8:
		return fmt.Errorf("image type %q is none of uint8, float16, bfloat16, float32", s.DType)
	case s.DType == multimodal.Uint8 && s.Scale != Bytes:
		return errors.New("normalized pixels aren't of type uint8")
	}
	return nil
}

// modelDType is the type that vLLM runs a model in, by its config: weights of 32 bits are run in 16.
func modelDType(name string) multimodal.DType {
	switch name {
	case "float16", "half":
		return multimodal.Float16
	}
	return multimodal.BFloat16
}

// rule is how the backend resizes.
func (b Backend) rule() native.ImageRule {
	switch b {
	case Pillow:
		return native.PillowCheapestRule
	case Pillow12:
		return native.PillowRule
	}
	return native.TorchRule
}
