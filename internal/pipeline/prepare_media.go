package pipeline

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

// mediaKinds are the kinds of media workers know, in the order they are written.
var mediaKinds = [...]string{"image_url", "video_url", "audio_url"}

// mediaKey returns the worker's name for a kind of content part; empty when it knows none.
func mediaKey(kind string) string {
	// Files have no name on the worker's side.
	switch kind {
	case "image_url", "video_url", "audio_url":
		return kind
	case "input_audio": // its bytes have become a data URL
		return "audio_url"
	}
	return ""
}

// mediaPath is the JSON path of a content part.
func mediaPath(m *openai.Media) string {
	return "messages[" + strconv.Itoa(m.Message) + "].content[" + strconv.Itoa(m.Part) + "]"
}

// bulkiest is the JSON path of the conversation's largest data URL; empty when none takes room worth a word.
func bulkiest(media []openai.Media) (path string) {
	largest := maxSpare
	for i := range media {
		m := &media[i]
		if len(m.URL) > largest && isDataURL(m.URL) {
			largest, path = len(m.URL), mediaPath(m)+"."+m.Kind
		}
	}
	return path
}

func isDataURL(url string) bool { return len(url) > 5 && strings.EqualFold(url[:5], "data:") }

// blame names the part that takes most of the room to a client whose request is too large for the way to its worker.
func (r *Prepared) blame(err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind != fault.TooLarge || f.Origin == fault.FromWorker || f.Param != "" || r.bulkiest == "" {
		return err
	}
	named := *f
	named.Param, named.Message = r.bulkiest, f.Message+"; its largest part is `"+r.bulkiest+"`"
	return &named
}

// mediaData returns the URLs of the conversation's media by kind, in order: {"image_url":[{"Url":…}]}. It is empty
// when there are none. Fetching and decoding is the worker's part. A part that no worker could be told of is refused: an
// answer as if it weren't there would be a wrong one.
func mediaData(media []openai.Media) (json.RawMessage, error) {
	if len(media) == 0 {
		return nil, nil
	}
	for i := range media {
		if m := &media[i]; mediaKey(m.Kind) == "" {
			path := mediaPath(m)
			return nil, fault.Bad(path, "`%s` is of type %q, which no model here takes", path, m.Kind)
		}
	}
	var w objectWriter
	// Each kind is a list of its own; within it the order is that of the placeholders in the prompt.
	for _, kind := range mediaKinds {
		list := []byte{'['} // stays alone when there are none of the kind
		for i := range media {
			if mediaKey(media[i].Kind) != kind {
				continue
			}
			if len(list) > 1 {
				list = append(list, ',')
			}
			list = append(appendQuoted(append(list, `{"Url":`...), media[i].URL), '}')
		}
		if len(list) > 1 {
			w.raw(kind, append(list, ']'))
		}
	}
	return w.done(), nil
}
