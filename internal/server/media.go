package server

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
)

// answerMedia passes sound, or the frames of a video, on as they come.
func (x *exchange) answerMedia(p *pipeline.Prepared, frames bool) error {
	m := &media{x: x, frames: frames, none: errNoSound}
	if frames {
		m.none = errNoFrames
	}
	err := x.s.opts.Pipeline.Run(x.r.Context(), p, m)
	switch {
	case err != nil && x.answered && !m.gone:
		// The end of the body would look like the end of the sound or video: the connection breaks off instead.
		_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now())
	case err == nil && !x.answered:
		return m.none.Because(errors.New("the answer is empty"))
	case err == nil && frames:
		// Dynamo's frontend leaves the last boundary out, without which readers of multipart bodies miss the end. A client
		// that has left by now has all frames.
		x.s.writeWithin(x.w, x.s.opts.Stream.WriteTimeout)
		_, _ = x.w.Write([]byte("--frame--\r\n"))
	}
	return err
}

// The failures of workers that send nothing of what was asked for. They are never changed: Because makes copies.
var (
	errNoSound    = fault.New(fault.BadGateway, "The worker sent no sound")
	errNoFrames   = fault.New(fault.BadGateway, "The worker sent no frames")
	errWholeVideo = fault.New(fault.BadGateway,
		"The worker made a whole video and sent no frames; /v1/videos is where such videos are asked for")
)

// media writes the sound or frames that a worker sends, item by item. It belongs to one request.
type media struct {
	x      *exchange
	frames bool         // each piece is a part of its own
	none   *fault.Error // what to say when there is nothing to write
	gone   bool         // the client doesn't read
}

var _ pipeline.Sink = (*media)(nil)

// mediaItem is what a worker sends of sound or video.
type mediaItem struct {
	Status string `json:"status"`
	Error  string `json:"error"` // the worker's own words, for the log
	Data   []struct {
		Format string `json:"output_format"`
		URL    string `json:"url"` // of the whole
		Base64 []byte `json:"b64_json"`
	} `json:"data"`
}

// soundTypes are the media types of the codecs workers know by name.
var soundTypes = map[string]string{
	"wav": "audio/wav", "mp3": "audio/mpeg", "opus": "audio/opus", "aac": "audio/aac", "flac": "audio/flac",
	"pcm": "audio/pcm",
}

// Start does nothing: until there is something to hear or see, a failure is a status.
func (m *media) Start(*pipeline.Prepared) error { return nil }

// Delta writes what the item holds.
func (m *media) Delta(d *pipeline.Delta) error {
	if d.Raw == nil {
		return nil
	}
	var item mediaItem
	if err := json.Unmarshal(d.Raw, &item); err != nil {
		if broken, ok := errors.AsType[base64.CorruptInputError](err); ok {
			err = fmt.Errorf("b64_json: %w", broken)
		}
		return m.none.Because(err)
	}
	if item.Error != "" || item.Status == "failed" {
		return m.none.Because(errors.New(item.Error))
	}
	for _, one := range item.Data {
		if m.frames && one.URL != "" {
			m.none = errWholeVideo
		}
		if err := m.write(one.Format, one.Base64); err != nil {
			return err
		}
	}
	return nil
}

// write writes a piece, which isn't kept; the first decides the type of the whole.
func (m *media) write(format string, piece []byte) error {
	if len(piece) == 0 {
		return nil
	}
	whole := "multipart/x-mixed-replace; boundary=frame"
	if m.frames {
		part, err := frame(piece)
		if err != nil {
			return err
		}
		piece = part
	} else if whole = soundTypes[format]; whole == "" {
		whole = "application/octet-stream"
	}
	x := m.x
	if !x.answered {
		x.w.Header()["Content-Type"] = []string{whole}
		x.answered = true
		x.dequeue()
	}
	x.s.writeWithin(x.w, x.s.opts.Stream.WriteTimeout)
	if _, err := x.w.Write(piece); err != nil {
		m.gone = true
		return errGone.Because(err)
	}
	return nil
}

// frame makes a part of a picture, as Dynamo's frontend does. That one calls everything JPEG, a whole video included: what
// is known for another picture goes by its own name here, and a video is an error.
func frame(picture []byte) ([]byte, error) {
	kind := http.DetectContentType(picture)
	switch {
	case strings.HasPrefix(kind, "video/"):
		return nil, errWholeVideo.Because(errors.New(kind))
	case !strings.HasPrefix(kind, "image/"):
		kind = "image/jpeg"
	}
	part := fmt.Appendf(nil, "--frame\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", kind, len(picture))
	return append(append(part, picture...), "\r\n"...), nil
}

// Flush sends what there is: somebody is listening or watching.
func (m *media) Flush() error {
	if !m.x.answered {
		return nil
	}
	if err := http.NewResponseController(m.x.w).Flush(); err != nil {
		m.gone = true
		return errGone.Because(err)
	}
	return nil
}
